"""Operators -> times.

A model of latency (`model.LatencyModel`) has one method, `time`, which returns an
`operator_time.OperatorTime`. `calibrated.CalibratedLatency` is the default: it takes the fitted kernel that
serves an operator (`choice.choose`) and the law of its kind (`laws.law_of_kind`). A law
gives parts of a kernel's time: fixed, memory, work. `bands.calibrated_time` makes of them what every law
returns: time, band, what bounds it and its source. `waves` and `tiles` hold what several laws share.
"""
