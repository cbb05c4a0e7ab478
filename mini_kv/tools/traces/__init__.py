"""Traces: requests with their times, and their hits in the cache. Standard library only, except for texts.

`readers` turns a file into requests. `published` fetches published traces, `synthetic`, `generators` and
`agent_sessions` make traces from a seed, and `faults` adds two faults to them. In reading order after that: `replay` (a
trace through the real cache manager), `plain_lru` (counts the hits without the engine), `clock` (a trace through the
scheduler, with arrivals and answers), `observed_run` (the same with every call recorded), `cells` (the cells of a
table, in processes or on a cluster), `league` (compares eviction policies), `intervals` (how certain a difference is).
Then the causes of lost hits: `prompt_hashes` (the cache's view of a request), `curve` (every pool size at once), `plot`
(its drawings), `seen` (the tokens that earlier prompts had), `runs` (prompts through the manager and the scheduler),
`plain_hits` (the hits for one group of full attention, without the manager), `waterfall` (one loss per row), `causes`
(their names), `pair` (two prompts). `sessions`: the sessions of coding agents. `commands`: the commands.
`small.jsonl` holds 200 requests made by `python -m mini_kv.tools.traces.synthetic`. `agents.sha256` holds digests of
the sessions that `mini-kv trace fetch agents` downloads. `session-*.jsonl` are made-up sessions.
"""
