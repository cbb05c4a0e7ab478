"""The learner's engine: mini-kv generate --labs starter writes a text with what the labs have built so far.

A method's way, three hops: lab.toml names its part and the part's place (goes_to); found.py puts the learner's class
in that field of OwnParts; assembly.py hands the field to a constructor of the engine, or to that of attention.

Reading order: `found` (which part of a lab is used, and why not), `assembly` (where it goes in the engine), `attend`
(the parts with tensors), `trial` (run it, and stop it if it does not come back), `blame` (which part is wrong),
`command` (table, text, verdict), `served` (for `mini-kv serve`).
"""
