"""The scheduler: it decides how many tokens each request gets in a step, and preempts a request if blocks run out.

Standard library only. Runs in a browser. In reading order: `request_queue`, `output` (the plan of a step), `config`
(the limits, and the requests that can run under them), `admission` (when a new request may enter), `step` (the state
of the running step), `scheduler_checks`, `scheduler`.
"""
