"""Work of a kernel: its sizes, its FLOPs, the bytes it must move.

`operator` has the interface, `gemm`, `attention` and `elementwise` the operators of dense models; other
modules add a family each. `kinds` has a record for each kind, from which every list of kinds in the project
follows. `table` reads rows of operators.
"""
