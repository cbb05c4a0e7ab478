"""The learner's engine: mini-kv generate --labs starter writes a text with the parts that the labs have built so far.

A method gets into the engine in three steps. lab.toml names its part and the part's place (goes_to). learner_files.py
puts the learner's class in that field of OwnParts. assembly.py passes the field to a constructor of the engine or of
attention.

Reading order: `learner_files` (the used parts of a lab, and the reasons against the others), `assembly` (their places
in the engine), `attend` (the parts with tensors), `steps` (a run with a time limit, and the first step that differs),
`blame` (finds the faulty part), `difference` (what differs, with its part and both sides), `command` (table, text,
verdict), `serve_labs` (for `mini-kv serve`), `own_manager` (runs the checks of lab-15 on a manager of the learner's own
parts).

For `mini-kv finale`: `random_requests`, `random_workload`, `offload_workload` and `answered_workload` (without a model,
the last for a cache behind messages), `arrivals`, `model_workload` and `hour_workload` (the same requests, with a model
and with dice), `integration` (the checks),
`divergence_demo` (one workload on changed parts, for the chapter and the notebook), `inside_vllm` (vLLM's engine with
the learner's parts).
"""
