"""Strategies as plug-ins of core's seams. Standard library only.

`admission_strategies`: when a waiting request may enter, and the strategies by name. Which cached block is overwritten
first: `eviction` (the verbs of a free queue around one question), `ranked` (FIFO, LFU, seen twice, leaf first),
`sieve`, `recent_then_used` (the hybrid of LRU and LFU), `belady` (the ceiling, which knows the future), `catalogue`
(all by name, or one's own from a file). `ahead`: eviction before there is need, an experiment.
"""
