"""Bookkeeping of the KV cache: the blocks of each request, the shared blocks, the order of reuse.

Standard library only; runs in a browser. In reading order: `block`, `free_blocks`, `free_queue`,
`token_ids`, `request`, `block_hash`, `block_hash_list`, `block_pool`, `kv_cache_interface`,
`single_type_kv_cache_manager`, `mamba_manager`, `kv_cache_coordinator`, `copy_on_write`, `stats`, `parts`, `checks`,
`quiet`, `kv_cache_manager`, and in `sched` which request runs next. `kv_cache_planning` comes before all of these: it
makes groups of a model's layers. Read `checked_hits`, `errors` and `invariants` at any time.
"""
