"""Bookkeeping of the KV cache: which request holds which block, which blocks are shared, which is reused next.

Standard library only; runs in a browser. In reading order: `block`, `free_blocks`, `free_queue`,
`token_ids`, `request`, `block_hash`, `block_hash_list`, `block_pool`, `kv_cache_interface`,
`single_type_kv_cache_manager`, `mamba_manager`, `kv_cache_coordinator`, `copy_on_write`, `stats`, `parts`, `checks`,
`quiet`, `kv_cache_manager`, and in `sched` which request runs next; before them all `kv_cache_planning`, which
makes groups of a model's layers; beside them `checked_hits`, `errors` and `invariants`.
"""
