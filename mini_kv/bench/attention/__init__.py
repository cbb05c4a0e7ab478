"""The cost of attention over blocks, compared with attention over contiguous keys and values. Needs torch.

In reading order: `shapes` (the batches, and how many bytes and operations they need), `timing` (how a call is timed, on
a CPU and on a GPU), `cpu` and `gpu` (the rows: what is measured, against what), `cpu_peers` and `gpu_peers` (other
people's kernels), `__main__` (`python -m mini_kv.bench.attention`). On a GPU besides: `tune` (other tiles than the
plan's), `engine_on_gpu` (whether an engine says there what it says on a CPU).
"""
