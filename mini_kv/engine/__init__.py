"""From prompt to text: a model, the cache it reads and writes, and the loop that gives every request its next token.

In reading order: `interface` (what a model and the past it looks back on owe each other), `model` (a small Llama),
`tokenizer` (text to numbers and back), `checkpoint` (a model's files). How the checkpoint in `tiny` came about stands
apart: `prose`, `train_tokenizer`, `train`. Checkpoints that others have trained run by way of transformers:
`huggingface`, `huggingface_checkpoint`, `huggingface_tokenizer`.

Needs torch, like `mini_kv.attention`.
"""
