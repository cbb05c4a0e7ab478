"""Recorders: vLLM's answers to the scenarios and plans that tests and `mini-kv verify` play.

`generate` and `generate_scheduler` make random scenarios from a seed, `record` and `record_scheduler` play all of them
on vLLM, and `recording` has the stored form. `record_planning` asks vLLM for the plans of the configurations in
`planning`. `strict` compares mini_kv with a recording. `versions` has what the recorders do differently for a version
of vLLM. `record_metrics` has vLLM write its metrics and its log for `mini-kv why`. `record_names` reads the names and
defaults in vLLM's source files. `upstream` plays the scenarios on another version, and `compare_calls` and
`compare_names` write down what changed.
"""
