"""The gain of a cache and the cost of a request, measured on whole generations. Needs torch and safetensors.

In reading order: `setup` (models, prompts, a clock), `cache` (a token with and without a cache of its past),
`prefix` (prompts that begin alike), `batch` (many requests in one step, and the machine's limits), `peers`
(transformers on the same model), `__main__` (`python -m mini_kv.dev.generate`).
"""
