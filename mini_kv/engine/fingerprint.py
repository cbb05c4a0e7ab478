"""Which model, and which weights: what must be equal before one engine's block hashes may match another's.

Both go into every block hash. KV of the same tokens is other KV as soon as a weight, a setting or the dtype is another.
"""

import ctypes
import hashlib

import torch
from torch import Tensor

from mini_kv.core.block_hash import frame
from mini_kv.engine.interface import CausalLM

MAX_VALUES = 1 << 18
"""Values of one tensor that are read, at most."""


def model_fingerprint(model: CausalLM) -> str:
    """Return a digest of the model's settings and the dtype that it computes in."""
    return hashlib.sha256(frame(model.settings.encode(), str(model.dtype).encode())).hexdigest()


def weights_epoch(model: CausalLM) -> int:
    """Return a number made of the weights as they lie in memory: their names, shapes, dtypes and values.

    Of a tensor with up to `MAX_VALUES` values each one counts, which is all of the small model. Of a larger one only
    that many count, evenly spaced: training changes some of them, but a change to a few chosen weights can be missed.
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
