"""Identifies model and weights: two engines may share block hashes only if both are equal.

Both are part of every block hash. A different weight, setting or dtype gives different KV for the same tokens.
"""

import ctypes
import hashlib

import torch
from torch import Tensor

from mini_kv.core.block_hash import frame
from mini_kv.engine.interface import CausalLM

MAX_VALUES = 1 << 18
"""The most values of one tensor that are read."""


def model_fingerprint(model: CausalLM) -> str:
    """Return a digest of the model's settings and its dtype."""
    return hashlib.sha256(frame(model.settings.encode(), str(model.dtype).encode())).hexdigest()


def weights_epoch(model: CausalLM) -> int:
    """Return a number made of the weights in memory: their names, shapes, dtypes and values.

    Every value counts in a tensor with up to `MAX_VALUES` values, as in all of the small model. Of a larger tensor only
    that many count, evenly spaced. Training changes some of these. A change to a few single weights can be missed.
    """
    digest = hashlib.sha256()
    for name, weights in model.named_parameters():
        digest.update(frame(f"{name} {list(weights.shape)} {weights.dtype}".encode(), _some_bytes(weights)))
    return int.from_bytes(digest.digest()[:16], "big")


def _some_bytes(weights: Tensor) -> bytes:
    """Return the bytes of all values, or of evenly spaced ones."""
    step = -(-weights.numel() // MAX_VALUES)
    values = weights.detach().flatten()[:: max(step, 1)].contiguous().cpu().view(torch.uint8)
    return ctypes.string_at(values.data_ptr(), values.numel())  # without numpy, the fast way to a tensor's bytes
