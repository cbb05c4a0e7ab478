"""The data path: from a block table to slots, from slots to attention. Needs torch; triton is used where there is one.

In reading order: `block_table` (which blocks a request has, as a tensor), `kv_cache` (where keys and values lie, and how
they are written), `metadata` (what a step tells every layer), `reference` (attention over blocks, the obvious way),
`merge` (two parts of one attention put together), `torch_backend` (the same, fast on a CPU), `backends` (which of them
to use, and why).

Nothing here knows requests, hashes or reference counts: block ids come in, and never go back.
"""
