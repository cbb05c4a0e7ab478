"""vLLM's recorded answers as a suite for any engine: `mini-kv verify -- COMMAND`.

In reading order: `scenario_language` (scenarios, and states in words), `program` (what a program is asked, and what its
replies look like), `manager` and `scheduler` (the calls of the two parts), `compare` (vLLM's state against the
program's), `deviations` (the listed differences between mini_kv and vLLM), `likeness` (known faults with the same
effect), `board` and `diagnosis` (lab-17's board, and the sentence that a difference breaks), `variant` (its contract in
a class), `verdict_report`. For engines in Python: `adapter`, and `vllm_names` for those with vLLM's names. `adapters`
has examples. The folder `scenarios/` has the calls and vLLM's answers.
"""
