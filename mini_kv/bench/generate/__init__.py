"""What a cache buys, and what a request costs: whole generations, measured. Needs torch and safetensors.

In reading order: `setup` (models, prompts, how long it takes), `cache` (a token with and without its past kept),
`prefix` (prompts that begin alike), `batch` (many requests in one step, beside what the machine can do), `peers`
(transformers and vLLM on the same model; `vllm_peer`, `vllm_worker`), `__main__` (`python -m mini_kv.bench.generate`).
"""
