"""Developers' tools, never in a wheel. Most measure: the cost of the bookkeeping, compared with other engines.

Standard library only. The engines to compare with are optional. In reading order: `measure` (clock, spread, order of
the runs), `peers` (one adapter per engine), `bookkeeping` (the rows of the table), `scaling` (rows about costs by
size), `report` (table and JSON), `__main__` (`python -m mini_kv.dev`). `radix`: two prefix indexes, a chain of hashes
and `radix_tree`, a tree over tokens. With torch: `attention` (`python -m mini_kv.dev.attention`), `generate`
(`python -m mini_kv.dev.generate`), `quantized_quality` (the loss of quality by a cache in 8 bits), `tiers` (the time
to the first token, computed or reloaded), `draft_acceptance` (the share of right guesses, and the saved steps) and
`serve` (many clients on one endpoint). `vllm_parity` compares the engine with vLLM, token by token and block by block.
The README says which figure of the book each part makes.

`training` made the small models of the engine. `finale_detection` counts which wrong versions of the labs the checks of
the finale detect. `recorders` record vLLM's answers.
"""
