"""From prompt to text: a model, the cache it reads and writes, and the loop that gives every request its next token.

In reading order: `interface` (what a model and the past it looks back on owe each other), `model` (a small Llama).

Needs torch, like `mini_kv.attention`.
"""
