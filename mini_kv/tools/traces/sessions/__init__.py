"""Session files of coding agents: where the prefix of a conversation broke, and what the provider's cache found.

In reading order: `session` (turns, and the texts of their prompts), `claude_code` and `codex` (the readers),
`session_formats` (which of these a file is), `layout` (the token at which each text begins), `hosted` (a cache with
entries that expire), `blocks` (a pool of blocks, also for several sessions), `breaks` (the causes), `analysis` (all of
it in one result), `session_report` (the result in words). Standard library only. The readers take lines, so that they
also run where there are no files.
"""
