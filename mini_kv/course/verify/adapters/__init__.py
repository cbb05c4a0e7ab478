"""Examples of adapters. `mini_kv_engine` is ours: `mini_kv_manager` and `mini_kv_scheduler`, with groups from `specs`.

`nano_vllm`, `minivllm` and `mini_sglang` are the cache managers of other engines, from `checkouts` of them. The rest is
a small engine in JavaScript and its adapter.
"""
