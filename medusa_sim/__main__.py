"""`python -m medusa_sim`: the command line where the script is not on the path."""

from medusa_sim.cli import main

if __name__ == "__main__":
    main()
