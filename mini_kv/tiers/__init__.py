"""A second home for blocks: memory, disk and a server below the engine's pool. Standard library and core; no torch.

`tiered_cache` puts `memory_tier`, `disk` and `remote` together, with `background` for what takes long and `sealed` for
what leaves the process; `tier_config` opens them by their options; `reload_cost` says when reloading is quicker than
computing. `connector` and `tiered_scheduler` are how the engine uses it: what is fetched before a request's turn, what
is put into the pool at its turn, what goes down when a block is reused. The worker's half, with tensors, is
`mini_kv.engine.kv_transfer`.
"""
