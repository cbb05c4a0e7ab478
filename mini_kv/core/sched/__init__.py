"""Which requests get how many tokens in the next step, and which give way when blocks run out.

Standard library only; runs in a browser. In reading order: `request_queue`, `output` (what a step is), `config` (the
limits, and what can ever run under them), `admission` (when a newcomer may enter), `step` (what is kept of the step
under way), `scheduler_checks`, `scheduler`.
"""
