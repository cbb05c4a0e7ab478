"""The verbs of `mini-kv` about traces, one module for each.

In the order of the book: `replay_command`, `league_command`, `curve_command`, `explain_command`, `trace_command`,
`why_command`.
"""
