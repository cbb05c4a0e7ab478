"""mini_kv against a recording, with no other difference than those that its scenarios list."""

from collections.abc import Callable, Sequence

from mini_kv.course.verify.compare import listed_state
from mini_kv.course.verify.scenario_language import Call, Scenario, State


def differences(scenario: Scenario, changes: Sequence[State], perform: Callable[[Call], State]) -> list[str]:
    """Return what differs between the recording and mini_kv, apart from what the scenario says; stops at a call.

    A listed difference that is none any more is a difference, too.
    """
    state: State = {}
    got: State = {}
    for number, (call, changed) in enumerate(zip(scenario.calls, changes, strict=True), start=1):
        before, state = got, state | changed
        got = perform(call)
        wanted = listed_state(call, state, before)
        where = f"{scenario.name!r}, call {number}, {call.text!r}"
        found = [
            f"{where}: {field} does not differ from vLLM any more: {value}"
            for field, value in call.differs
            if state[field] == value
        ]
        if call.unchanged and all(before[field] == state[field] for field in before if field != "result"):
            found.append(f"{where}: vLLM's state does not change any more either")
        found += [
            f"{where}: {field} differs\n  expected {wanted[field]}\n  got      {got[field]}"
            for field in wanted
            if got[field] != wanted[field]
        ]
        if found:
            return found
    return []
