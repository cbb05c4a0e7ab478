"""The checks inside vLLM, and the check beside its recorded run."""

from dataclasses import fields
from functools import cache

from mini_kv.course.finale.inside_vllm.recorded import read, requests_of
from mini_kv.course.finale.inside_vllm.vllm_workload import VllmWorkload
from mini_kv.course.finale.integration import KERNELS, ON_DICE, TENSORS, Check
from mini_kv.course.finale.steps import Run, Workload
from mini_kv.course.labkit.learner_parts import OwnParts

IN_VLLM = ("queue", "index", "full_attention")
"""The places in vLLM's own cache."""
RECORDED_SEED = 0
COMPARED = "cache, batches and words"


def vllm_checks(seed: int) -> list[Check]:
    """Return the checks on vLLM's engine. They are compared with vLLM without any part from the labs."""
    requests = requests_of(seed)
    inside, above = VllmWorkload(requests, "parts"), VllmWorkload(requests, "orders")

    @cache
    def alone(_: Workload) -> Run:
        return Run(inside).complete()

    others = [place.name for place in fields(OwnParts) if place.name not in IN_VLLM]
    return [
        Check(
            "vLLM's scheduler and cache, on your queue, index and lookup",
            [inside],
            "one group",
            others,
            has_model=True,
            compared=COMPARED,
            reference=lambda _: alone(inside),
            host="vLLM",
            own="vLLM",
        ),
        Check(
            "vLLM's model, under your scheduler and cache",
            [above],
            "one group",
            (*ON_DICE, *TENSORS),
            has_model=True,
            compared=COMPARED,
            reference=lambda _: alone(inside),
            host="vLLM",
        ),
    ]


def recorded_check() -> Check:
    """Return the check on mini_kv's engine that is compared with the recorded run of vLLM."""
    version, _, run = read()
    return Check(
        f"A recorded run of vLLM {version}",
        [run.workload],
        "one group",
        (*ON_DICE, *KERNELS),
        has_model=True,
        compared=COMPARED,
        reference=lambda _: run,
        host="vLLM",
    )
