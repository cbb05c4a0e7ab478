"""The learner's engine: `mini-kv generate --labs starter` writes a text with what the labs have built so far.

Reading order: `parts` (which part of a lab is used, and why not), `assembly` (where it goes in the engine), `attend`
(the parts with tensors), `trial` (run it, and stop it if it does not come back), `command` (table, text, verdict).
"""
