"""Will it fit: memory and time of real models, before anything runs. Standard library only.

In reading order: `models` (real models' layers), `config_json` and `config_layers` (the layers in a model's own file),
`states` (what a layer with a state keeps), `compressed` (what DeepSeek-V4's layers keep), `cut` (what one card of
several keeps), `cost` (GPUs, and what a step takes at the least), `flags` (what vLLM is told), `fit` (weights, cache
and rest of a GPU), `plan_command` (`mini-kv plan`).
"""
