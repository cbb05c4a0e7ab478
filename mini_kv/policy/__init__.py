"""Strategies for the interfaces of core. Standard library only.

Admission: `admission_strategies` (when a waiting request may enter, and the strategies by name). Eviction, the order in
which cached blocks are reused: `eviction` (the operations of a free queue around one decision), `ranked` (FIFO, LFU,
seen twice, leaf first), `sieve`, `recent_then_used` (the hybrid of LRU and LFU), `belady` (the upper bound, which knows
the future), `catalogue` (all by name, or your own from a file). `hints`: a policy that is told when a session will
probably return.
"""
