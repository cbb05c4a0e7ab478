"""Traces: requests with their times, and what the cache makes of them. Standard library only, texts aside.

In reading order: `mooncake` (the file format of published traces), `token_request` (a request whose tokens are known),
`synthetic` (traces of our own, from a seed), `replay` (a trace through the real cache manager), `plain_lru` (the same
question answered without the engine), `clock` (a trace through the scheduler, with arrivals and answers),
`replay_command` (`mini-kv replay`), `league` and `league_command` (eviction policies side by side: `mini-kv league`).
Then where the hits went: `prompts` (what the cache sees of a request of either kind), `curve` and `curve_command`
(`mini-kv curve`: every pool size at once), `plot` (their drawings), `seen` (what came before, and behind which
difference), `runs` (prompts through the manager and the scheduler), `waterfall` (one loss per row), `causes` (their
names), `pair` (two prompts), `explain_command` (`mini-kv explain`).
More traffic: `formats` (which format a file is in), `token_trace` (lines that hold the tokens), `texts`, `chats` and
`prompt_tokenizer` (prompts and chats, with a tokenizer.json), `request_logs` (vLLM's and SGLang's), `qwen_bailian`,
`published` (traces of others, fetched), `generators` (five kinds, from a seed), `faults` (two of them planted),
`trace_command` (`mini-kv trace`), `watch` (a trace through the scheduler with every call recorded).
`small.jsonl` holds 200 requests made by `python -m mini_kv.traces.synthetic`.
"""
