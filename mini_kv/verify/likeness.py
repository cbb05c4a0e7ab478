"""Names a fault by its effect: which of the known faulty managers shows the same states as a program."""

from typing import Any

from mini_kv.labkit.detective.suspects import SUSPECTS, Suspect
from mini_kv.verify.adapters.mini_kv_manager import ManagerAdapter
from mini_kv.verify.compare import Outcome
from mini_kv.verify.language import State
from mini_kv.verify.manager import Player


class SuspectAdapter(ManagerAdapter):
    """A faulty manager of lab-15 behind the protocol."""

    def __init__(self, suspect: Suspect) -> None:
        self.suspect = suspect

    def make_manager(self, settings: dict[str, Any]) -> Any:
        """Return the faulty manager."""
        return self.suspect.make(settings["num_blocks"], settings["block_size"])


def suspects_like(outcome: Outcome) -> list[Suspect]:
    """Return the faulty managers that differ from vLLM at the same call, in the same way.

    They have one group of full attention and caching switched on. For other scenarios, and for those of the scheduler,
    there are none.
    """
    scenario = outcome.recorded.scenario
    settings = scenario.settings
    plain = not settings["groups"] and settings["enable_caching"] and not settings.get("drafter_groups")
    if outcome.recorded.part.name != "manager" or not plain or outcome.got is None:
        return []
    return [suspect for suspect in SUSPECTS if _states(suspect, outcome) == outcome.got]


def _states(suspect: Suspect, outcome: Outcome) -> State:
    """Return what the faulty manager shows after the call that differs, in the fields that the program shows."""
    player = Player(SuspectAdapter(suspect), outcome.recorded.scenario.settings)
    state: State = {}
    for call in outcome.recorded.scenario.calls[: outcome.num_equal + 1]:
        state = player.perform(call)
    assert outcome.got is not None
    return {field: state[field] for field in outcome.got}
