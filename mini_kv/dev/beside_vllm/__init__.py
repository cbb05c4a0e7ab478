"""Compares our whole engine with vLLM on the same prompts: tokens, hits, and stored and removed blocks.

    python -m mini_kv.dev.beside_vllm                     # with MINI_KV_VLLM_PYTHON, see `bench.generate.vllm_peer`
    python -m mini_kv.dev.beside_vllm --recorded FILE     # with a recorded run of vLLM
    python -m mini_kv.dev.beside_vllm --server http://127.0.0.1:8000 --replay tcp://127.0.0.1:5558

In reading order: `workload` (model, prompts, and our run), `vllm_worker` (vLLM's run, in its own Python),
`running_server` (a server's run, by HTTP and ZeroMQ), `compare` (the first difference), `__main__` (the command).
"""
