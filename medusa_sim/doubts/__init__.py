"""Doubts about a scenario, in sentences: what its answers rest on that was not measured for it.

The order in which to read:

    `of_scenario`   rules in order, each a function of the scenario that yields sentences; further rules stand
                    in `acceptance`, `kernels` (what stands in for others: `stand_ins`) and `room`
    `of_answer`     what lengths and numbers of requests exceed, once those are known
    `terms`         terms of an engine outside the range in which they were measured, where much of a token's
                    time rests on them (`term_shares`); `one_model` has those of one other model's rows
    `standing`      how near measured set-ups are, and the error to expect
"""
