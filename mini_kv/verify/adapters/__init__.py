"""Examples of adapters: mini_kv's own engine, nano-vllm's block manager, and a small engine in JavaScript."""
