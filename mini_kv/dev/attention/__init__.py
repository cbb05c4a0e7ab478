"""The cost of attention over blocks, compared with attention over contiguous keys and values. Needs torch.

In reading order: `shapes` (the batches, with their bytes and operations), `timing` (the time of a call on a CPU or
GPU), `cpu` and `gpu` (the rows and their comparisons), `gpu_peers` (kernels of other projects), `__main__` (`python -m
mini_kv.dev.attention`). On a GPU also: `tune` (other tiles than the plan's), `engine_on_gpu` (whether an engine
generates the same tokens there as on a CPU).
"""
