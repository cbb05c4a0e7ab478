"""Records the events of a cache: edges of blocks, calls, stories, metrics.

Standard library only. Runs in a browser. In reading order: `edge` (what a block can do), `recorder` (blocks that
report their changes), `traced_manager` (calls as spans), `frame` (the state after a call), `story` (spans as lines of
text), `metrics` (numbers folded from spans), `lifetimes` (lifetime, idle time and reuse of blocks), `leaks` (blocks
that no served request uses), `events_file` (spans as a file), `predict` (questions about a step), `step_loop` (the
loop around a scheduler), `scenario` (calls as data, to be played), `reason` (the reason for a call's effect), `puzzle`
(scenarios that the player completes), `vllm_source` (links to vLLM's code), and `debug` (a manager that checks itself
after every call).
"""
