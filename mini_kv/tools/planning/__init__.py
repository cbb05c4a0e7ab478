"""Memory and time of real models, computed before anything runs. Standard library only.

In reading order: `models` (real models' layers), `config_file` (the fields of a model's own file), `config_json` and
`config_layers` (its layers), `config_lengths` (its longest request), `config_weights` (its parameters), `states` (the
tensors of a layer with a state), `compressed` (DeepSeek-V4's layers), `cut` (one card's share), `cost` (GPUs, and the
least time of a step), `flags` (vLLM's arguments), `fit` (weights, cache and free memory of a GPU),
`plan_command` (`mini-kv plan`).
"""
