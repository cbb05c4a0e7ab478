"""Traces: requests with their times, and their hits in the cache. Standard library only, except for texts.

`readers` turns a file into requests. `published` fetches published traces. `generators` makes traces of tokens from a
seed, and adds faults to them; `synthetic` makes one in Mooncake's format. In reading order after that:
`prompt_hashes` (the cache's view of a request), `runners` (the two ways through the cache: prompts in sequence, and
requests through the scheduler), `replay` (the hits of a sequence), `timed_replay` (the counts of a scheduled run, with
arrivals and answers), `observed_run` (the same with every call recorded), `parallel` (the cells of a table, in
processes or on a cluster), `league` (compares eviction policies, with 95 % intervals). Then the causes
of lost hits: `curve` (every pool size at once), `plot` (its drawings), `prefix_overlap` (what earlier prompts had),
`belady_bound` (the most that any policy finds), `waterfall` (one loss per row), `causes` (their names), `pair` (two
prompts), `counter_causes` (what a server's counters explain).
`sessions`: the sessions of coding agents. `commands`: the commands.
`small.jsonl` holds 200 requests made by `python -m mini_kv.tools.traces.synthetic`. `agents.sha256` holds digests of
the sessions that `mini-kv trace fetch agents` downloads. `session-*.jsonl` are made-up sessions.
"""
