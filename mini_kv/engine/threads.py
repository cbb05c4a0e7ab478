"""One torch thread for a small model.

torch splits an operation over all cores and continues when the last core is done. With a small model an operation takes
microseconds, and a step is hundreds of operations. If another program uses a core, torch waits for that core in each
operation, milliseconds each time, while the other cores are busy waiting.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mini_kv.engine.interface import CausalLM

SMALL_MODEL = 10_000_000
"""Weights up to which a model runs on one thread.

Measured on two cores, float32, one request, eight, and a prompt of 256 tokens. If the cores are idle, two threads make
a step of single tokens no faster (0.8 to 1.1 times, up to 100 million weights), and a prompt 1.1 to 1.8 times. If two
other programs are busy, two threads make both 5 to 20 times slower up to 7 million weights. With more weights the loss
of prompts is smaller: they take 1.9 times as long at 26 million weights, 1.3 times at 100 million.
"""


def is_small(model: CausalLM) -> bool:
    """Return whether a model computes on the CPU and is faster on one thread."""
    return model.device.type == "cpu" and sum(weights.numel() for _, weights in model.named_parameters()) <= SMALL_MODEL


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """While the context lasts, let torch use one thread, if `wanted`. Then restore the number. Costs a microsecond.

    The setting is per process: other Python threads may also compute on one torch thread meanwhile.
    """
    before = torch.get_num_threads()
    if not wanted or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
