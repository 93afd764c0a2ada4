"""A runtime (`runtime`) and what an engine adds to kernels (`engine`), each `term` with its source.

`case` says what a set-up is to a term, `ranges` where one was measured, `place` and `nearness` how near a
server lies to those that were, `widening` how much wider its bands are for that.
"""
