"""How much of what was recorded from vLLM is the same in mini_kv: counted from the scenarios, which the tests replay.

A call is equal if all that can be seen after it is: the tests fail otherwise, and also if a call names a difference
that is not there any more. So counting the calls that name one is counting those that differ.
"""

from collections.abc import Sequence

from mini_kv.course.verify import manager, scheduler
from mini_kv.course.verify.deviations import UPSTREAM
from mini_kv.course.verify.language import Scenario

PARTS = {"KVCacheManager": manager.load_scenarios, "Scheduler": scheduler.load_scenarios}
"""What was recorded, and its scenarios."""


def as_markdown() -> str:
    """Return the table: a row per part, then per group of its scenarios."""
    rows = [
        f"| {UPSTREAM} | scenarios | equal in every call | calls | equal | differ as listed |",
        "|---|" + "---:|" * 5,
    ]
    for name, load in PARTS.items():
        scenarios = load()
        rows.append(_row(f"**`{name}`**", scenarios))
        for group in dict.fromkeys(scenario.group for scenario in scenarios):
            rows.append(_row(group, [scenario for scenario in scenarios if scenario.group == group]))
    return "\n".join(rows)


def summary() -> str:
    """Return the sentence for the README."""
    scenarios = [scenario for load in PARTS.values() for scenario in load()]
    num_calls, num_equal = count(scenarios)
    return (
        f"{len(scenarios)} scenarios were recorded from {UPSTREAM}: after {num_equal:,} of {num_calls:,} calls "
        f"the observable state is equal, and {num_calls - num_equal} differ as listed"
    )


def count(scenarios: Sequence[Scenario]) -> tuple[int, int]:
    """Return the number of calls, and of those after which all is equal."""
    calls = [call for scenario in scenarios for call in scenario.calls]
    return len(calls), sum(not call.differs and not call.unchanged for call in calls)


def _row(name: str, scenarios: Sequence[Scenario]) -> str:
    num_calls, num_equal = count(scenarios)
    num_same = sum(not scenario.deviations for scenario in scenarios)
    return f"| {name} | {len(scenarios)} | {num_same} | {num_calls:,} | {num_equal:,} | {num_calls - num_equal} |"
