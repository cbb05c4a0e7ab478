"""The data path: from a block table to slots, from slots to attention. Needs torch. Uses triton if it is installed.

    kv_cache = allocate_kv_cache(num_blocks, block_size, num_kv_heads, head_size)          once per layer (*)
    metadata = build_metadata(query_lens, seq_lens, block_tables, block_size)              once per step
    write_kv(key, value, kv_cache, metadata.slot_mapping)                                  each layer: first write,
    out, lse = paged_attention(query, kv_cache, metadata, AttentionOptions())              then read

In reading order: `block_table` (the blocks of a request, and the slot of a token), `kv_cache` (the memory of keys and
values: writing, gathering and copying), `quantized` (the same in 8 bits), `metadata` (the data of a step for every
layer), `options` (the visible tokens), `reference` (attention over blocks in plain loops), `plain` (the same in 60
lines of torch), `merge` (combines two parts of one attention), `linear` (layers that keep a state), `torch_reader`,
`torch_plan` and `torch_backend` (fast on a CPU), `triton_kernels`, `triton_plan` and `triton_backend` (fast on a GPU),
`flashinfer_backend` and `flash_attn_backend` (kernels of other projects, if installed), `argument_checks` (refuses
arguments that cannot work), `backends` (the two calls above, and the choice of a backend).

(*) In the engine, layers of several groups share tensors, which its model runner allocates.

Nothing here uses requests, hashes or reference counts. Block ids are inputs only.
"""

from mini_kv.installer import install_torch

try:
    import torch as torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"mini_kv.attention needs torch: {install_torch()}", name="torch") from error
