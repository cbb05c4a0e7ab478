"""What happened in a cache, and how it looks: edges of blocks, calls, stories, metrics, drawings.

Standard library only. Runs in a browser. In reading order: `edge` (what a block can do), `recorder` (blocks that report
their changes), `traced_manager` (calls as spans), `frame` (the state after a call), `story_text` (spans as lines of
text), `metrics` (numbers folded from spans), `lifetimes` (lifetime, idle time and reuse of blocks), `leaks` (blocks
that no served request uses), `events_file` (spans as a file), `step_questions` (questions about a step), `step_loop`
(the loop around a scheduler), `scenario` (calls as data, to be played), `reason` (the reason for a call's effect),
`puzzle` (scenarios that the player completes), `vllm_source` (links to vLLM's code), and `debug` (a manager that checks
itself after every call).

Drawings: `text` draws a state in plain characters, and `terminal` plays a scenario. `story_json` writes a run as a
story. `figure` makes HTML from it, with the script that draws it (`kv_story.js`). `language` has the words of the
figure per language. `state` computes the states of a story, and `still` draws one of them as an SVG, for paper and for
pages without scripts.
"""
