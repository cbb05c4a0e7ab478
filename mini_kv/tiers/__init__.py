"""Tiers for evicted blocks: memory, disk and a server below the engine's pool. Standard library and core, no torch.

`tiered_cache` combines `memory_tier`, `disk` and `remote`, with `background` for slow jobs and `sealed` for bytes that
leave the process. `tier_config` opens them by their options. `reload_cost` decides when reloading is faster than
computing. The engine uses `connector` and `tiered_scheduler`: they fetch blocks before a request's turn, put them into
the pool at its turn, and store blocks that are about to be reused. The worker's half, with tensors, is
`mini_kv.engine.kv_transfer`.
"""
