"""Will it fit: memory and time of real models, before anything runs. Standard library only.

In reading order: `models` (real models' layers), `cut` (what one card of several keeps), `plan_command` (`mini-kv
plan`), `cost` (what a step takes at the least).
"""
