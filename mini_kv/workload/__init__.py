"""Workloads: which prompts arrive, and what the cache makes of them.

Standard library only. In reading order: `mooncake` (the file format of published traces), `synthetic` (traces
of our own, from a seed), `replay` (a trace through the real cache manager), `plain_lru` (the same question
answered without the engine), `replay_command` (`mini-kv replay`), `serve` (a trace through the real scheduler),
`curves`, `timeline` and `windows` (the numbers of the notebooks' charts), `models` and `plan_command` (real models'
layers, and `mini-kv plan`), `cost` (what a step takes at the least).
"""
