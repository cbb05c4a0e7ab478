"""Examples of adapters. `mini_kv_engine` is ours: `mini_kv_manager` and `mini_kv_scheduler`, with groups from `specs`.

`nano_vllm` is nano-vllm's block manager. The others are a small engine in JavaScript and its adapter.
"""
