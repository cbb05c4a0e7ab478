"""Traces: requests with their times, and their hits in the cache. Standard library only, except for texts.

`readers` turns a file into requests. `published` fetches traces of others, `synthetic` and `generators` make traces
from a seed, and `faults` plants two faults in them. In reading order after that: `replay` (a trace through the real
cache manager), `plain_lru` (the same question answered without the engine), `clock` (a trace through the scheduler,
with arrivals and answers), `observed_run` (the same with every call recorded), `cells` (the cells of a table, in
processes or on a cluster), `league` (eviction policies side by side).
Then where the hits went: `prompt_hashes` (what the cache sees of a request), `curve` (every pool size at once), `plot`
(its drawings), `seen` (what came before, and behind which difference), `runs` (prompts through the manager and the
scheduler), `plain_hits` (what the manager finds for one group of full attention, without running it), `waterfall` (one
loss per row), `causes` (their names), `pair` (two prompts). `commands`: the verbs.
`small.jsonl` holds 200 requests made by `python -m mini_kv.traces.synthetic`.
"""
