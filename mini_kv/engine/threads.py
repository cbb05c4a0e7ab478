"""One torch thread for a small model.

torch spreads an operation over all cores and goes on when the last of them is done. With a small model an operation is
microseconds of work, and a step is hundreds of operations. As soon as another program uses a core, torch waits for that
core again and again, milliseconds each time, and burns the other one meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mini_kv.engine.interface import CausalLM

SMALL_MODEL = 10_000_000
"""Weights up to which a model runs on one thread.

Measured on two cores, float32, a step of one token each of eight requests and one of a prompt of 256 tokens, in ms:

    weights     quiet: one thread    quiet: two     both cores busy: one    both cores busy: two
    1,000,000     4.1       14        3.7       8     18          37          363          587
    7,100,000      10       59         11      53     22          88          127        1,371
    26,200,000     26      202         25     114    275       2,203        7,593        4,233
    100,700,000    72      677         65     454    222       5,340        2,500        6,918
"""


def is_small(model: CausalLM) -> bool:
    """Return whether a model computes on the CPU and runs better on one thread."""
    return model.device.type == "cpu" and sum(weights.numel() for _, weights in model.named_parameters()) <= SMALL_MODEL


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Let torch use one thread inside, if `wanted`, and as many as before afterwards. Costs a microsecond.

    The number belongs to the process: what other Python threads compute with torch meanwhile may run on one, too.
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
