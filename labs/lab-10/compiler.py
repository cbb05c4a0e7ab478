"""Triton's compiler on a learner's kernels, for a GPU that need not be there."""

from types import ModuleType

from mini_kv.course.given.kernels import compiled
from mini_kv.course.labkit.fixture import LabUnderTest

from .helpers import Batch, Step


def refuse_what_no_compiler_takes(lab: LabUnderTest, torch: ModuleType, launcher: str) -> None:
    """Compile the kernels that both launchers start, for heads of 128 and blocks of 16. Fail for this one's.

    A small step or batch runs in the interpreter first, so that an error or a todo there is reported first.
    """
    step, batch = Step(torch, [0]), Batch(torch, [1], num_kv_heads=1, group=1)
    if launcher == "reshape_and_cache":
        step.run(lab)
    else:
        batch.run(lab)
    step = Step(torch, [17, 3], num_kv_heads=8, head_size=128, block_size=16, views=True)
    batch = Batch(torch, [17], num_kv_heads=8, group=4, head_size=128, block_size=16, dtype="float16", views=True)
    calls = {
        "reshape_and_cache": [*step.tensors().values()],
        "paged_attention_decode": [*batch.tensors().values(), batch.scale],
    }
    compiled.refuse_what_no_compiler_takes(lab, launcher, calls)
