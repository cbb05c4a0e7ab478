"""Files of requests, read line by line: traces with block ids, traces with tokens, texts, chats, logs of servers.

In reading order: `mooncake` (the file format of published traces), `json_values` (arrays, and JSON over many lines),
`token_trace` (requests whose tokens are known), `qwen_bailian`, `agents` (sessions of coding agents), `texts`, `chats`
and `prompt_tokenizer` (prompts and chats, with a tokenizer.json), `conversations` (public chat sets), `request_logs`
(vLLM's and SGLang's), `other_formats` (files that are not read, with the commands that make them readable), `formats`
(which of these a file is). `server_counters` reads no requests, but a server's metrics and its log.
"""
