"""Names a fault by its effect: which known faulty manager shows the same states as a program."""

from collections.abc import Sequence
from typing import Any

from mini_kv.course.given.faulty_managers import FAULTY_MANAGERS, OTHER_FAULTS, FaultyManager
from mini_kv.course.verify.adapters.mini_kv_manager import ManagerAdapter
from mini_kv.course.verify.compare import Outcome, play

KNOWN_FAULTS = (*FAULTY_MANAGERS, *(OTHER_FAULTS[name] for name in ("hits after a hole", "all or nothing", "forgets")))
"""The faulty managers of lab-15, and three more."""


class FaultAdapter(ManagerAdapter):
    """A faulty manager behind the protocol."""

    def __init__(self, fault: FaultyManager) -> None:
        self.fault = fault

    def make_manager(self, settings: dict[str, Any]) -> Any:
        """Return the faulty manager."""
        return self.fault.make(settings["num_blocks"], settings["block_size"])


def faults_like(outcome: Outcome) -> list[FaultyManager]:
    """Return the faulty managers that first differ from vLLM at the same call, in the same way.

    They have one group of full attention, and caching is on. For other scenarios there are none.
    """
    settings = outcome.recorded.scenario.settings
    others = settings["groups"] or settings.get("drafter_groups") or not settings["enable_caching"]
    if outcome.recorded.part.name != "manager" or others or outcome.got is None:
        return []
    return [fault for fault in KNOWN_FAULTS if _differs_alike(outcome, play(outcome.recorded, FaultAdapter(fault)))]


def _differs_alike(outcome: Outcome, other: Outcome) -> bool:
    """Return whether another program differs at the same call, with the same state in all that this one shows."""
    if outcome.got is None or other.got is None or outcome.num_equal != other.num_equal:
        return False
    return all(other.got[field] == value for field, value in outcome.got.items())


def explained(outcomes: Sequence[Outcome]) -> list[FaultyManager | None]:
    """Return for each outcome the known fault that explains it, or `None`. Few faults that explain many are chosen."""
    candidates = [faults_like(outcome) for outcome in outcomes]
    chosen: list[FaultyManager | None] = [None] * len(outcomes)
    while True:
        open_places = [i for i, fault in enumerate(chosen) if fault is None]
        counts = {fault: sum(fault in candidates[i] for i in open_places) for fault in KNOWN_FAULTS}
        best = max(counts, key=lambda fault: counts[fault])
        if counts[best] == 0:
            return chosen
        for i in open_places:
            if best in candidates[i]:
                chosen[i] = best
