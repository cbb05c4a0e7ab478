"""Bookkeeping of the KV cache: the blocks of each request, the shared blocks, the order of reuse.

Standard library only. Runs in a browser. In reading order: `block`, `free_blocks`, `free_queue`, `token_ids`,
`request`, `block_hash`, `block_hash_list`, `block_pool`, `kv_cache_interface`, `single_type_kv_cache_manager`,
`mamba_manager`, `kv_cache_coordinator`, `copy_on_write`, `stats`, `parts`, `checks`, `quiet`, `kv_cache_manager`, and
the package `sched` (the scheduler). An engine runs `kv_cache_planning` before all of these, to make groups of a
model's layers. Read `checked_hits`, `errors`, `invariants` and `strict_json` at any time.
"""
