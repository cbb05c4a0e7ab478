"""The commands of `mini-kv` for traces, one module per command.

In the order of the book: `replay_command` (and `league_table`), `curve_command`, `explain_command`,
`session_command`, `trace_command`, `why_command`.
"""
