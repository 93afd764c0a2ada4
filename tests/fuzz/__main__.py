"""`python tests/fuzz --seed N --count 5000`: the long run of the fuzzer."""

from fuzzer import main

main()
