"""Records what happens in a cache: edges of blocks, calls, stories, metrics.

Standard library only; runs in a browser. In reading order: `edge` (what a block can do), `recorder` (blocks that
report their changes), `traced_manager` (calls as spans), `frame` (the state after a call), `story` (spans as lines of
text), `metrics` (numbers folded from spans), `lifetimes` (how long blocks live and lie idle, how far apart uses are),
`leaks` (what is held for no request that is served), `events_file` (spans as a file), `predict` (questions about a
step), `step_loop` (the loop around a scheduler), `scenario` (calls as data, to be played), `reason` (why a call did
what it did), `puzzle` (scenarios that the player ends); beside them `debug` (a manager that checks itself after every
call).
"""
