"""The acts inside vLLM, and the act beside its recorded run."""

from dataclasses import fields
from functools import cache

from mini_kv.course.finale.finale import KERNELS, ON_DICE, TENSORS, Scene
from mini_kv.course.finale.inside_vllm.recorded import read, requests_of
from mini_kv.course.finale.inside_vllm.vllm_hour import VllmHour
from mini_kv.course.finale.steps import Act, Hour
from mini_kv.course.labkit.learner_parts import OwnParts

IN_VLLM = ("queue", "index", "full_attention")
"""The places in vLLM's own cache."""
RECORDED_SEED = 0
COMPARED = "cache, batches and words"


def vllm_scenes(seed: int) -> list[Scene]:
    """Return the acts on vLLM's engine. They are compared with vLLM without any part from the labs."""
    requests = requests_of(seed)
    inside, above = VllmHour(requests, "parts"), VllmHour(requests, "orders")

    @cache
    def alone(_: Hour) -> Act:
        return Act(inside).played()

    others = [place.name for place in fields(OwnParts) if place.name not in IN_VLLM]
    return [
        Scene(
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
        Scene(
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


def recorded_scene() -> Scene:
    """Return the act on mini_kv's engine that is compared with the recorded run of vLLM."""
    version, _, act = read()
    return Scene(
        f"A recorded run of vLLM {version}",
        [act.hour],
        "one group",
        (*ON_DICE, *KERNELS),
        has_model=True,
        compared=COMPARED,
        reference=lambda _: act,
        host="vLLM",
    )
