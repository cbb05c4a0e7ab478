"""The engine: a model, its KV cache, and the loop that computes each request's next token.

In reading order: `interface` (what a model and its attention must provide), `model` (a small Llama), `contiguous` (one
text at a time, without a cache and with a contiguous one: the oracle), `kv_memory` (the memory of the blocks),
`model_runner` (runs one forward over blocks for the scheduler's plan), `drafts` (guesses that a step checks),
`sampling` (logits to a token), `logprobs` (log probabilities), `detokenizer` (tokens to text that may be shown),
`output_processor` (outputs for the client), `config` (sizes and limits), `prompt_tokens` (checks, and token ids),
`llm_engine` (the loop around all of them), `llm` (a folder's model and its outputs), `engine_stats` (the log line),
`threads` (one is enough for a small model), `fingerprint` (the model that computed the KV), `poison` (debug mode:
reading memory without KV is an error), `tokenizer` (text to token ids and back), `errors`,
`weights_file` and `checkpoint` (a model's files, checked while they are read), `generation_screen` and `generate_text`
(the engine at a terminal). Published checkpoints run with transformers: `hf`, `latent_attention` (one vector in place
of keys and values), `lightning_attention` (a running state). Blocks that the pool evicts are kept in `mini_kv.tiers`:
see `kv_transfer` and `tiered_engine`. `tensor_parallel` splits a model over several processes.

Needs torch, like `mini_kv.attention`.
"""
