"""What the bookkeeping costs, beside what it costs in other engines.

Standard library only; the engines to compare with are optional. In reading order: `measure` (clock, spread, order of
the runs), `peers` (one adapter per engine), `bookkeeping` (the rows: what is measured), `growth` (rows that ask what
becomes dearer with size), `rows` (all of them), `memory_per_block` (bytes per block, in a process of its own),
`report` (table and JSON), `__main__` (`python -m mini_kv.bench`). `radix`: two prefix indexes, a chain of hashes and
`radix_tree`, a tree over tokens. Beside them, with torch: `attention` (`python -m mini_kv.bench.attention`),
`generate` (`python -m mini_kv.bench.generate`), `narrow` (what a cache in 8 bits costs in quality), `tiers` (the time
to the first token, computed or reloaded), `draft_acceptance` (how many guesses are right, and the steps that they
save) and `serve` (many clients on one endpoint); `beside_vllm`: the whole engine and vLLM, token by token and block by
block.
"""
