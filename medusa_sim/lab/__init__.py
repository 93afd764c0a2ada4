"""The laboratory: what measures, fits and checks the simulator, which never imports it.

`decoder` decodes for real and trains heads; `measure` times operators, steps and whole generations of this
device; `calibrate` fits kernels and engines to rows; `validate` sets predictions beside what was measured,
`reproduce` beside what papers print. `block_efficiency` predicts tokens per step of methods that draft with a
small model.
"""
