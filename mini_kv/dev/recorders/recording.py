"""The form in which a recording is stored: JSON, one call per line, so that a difference of two can be read."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from mini_kv.course.verify.scenario_language import Scenario, State

Calls: TypeAlias = Sequence[tuple[str, State]]
"""Each call with the fields that it changed."""


def as_json(
    header: Mapping[str, Any], recorded: Sequence[tuple[Scenario, Calls]], generated: Collection[Scenario]
) -> str:
    """Return the text of a recording. It has all settings, and of a generated scenario its group and purpose."""
    lines = ['{"header": ' + json.dumps(header, indent=1) + ',\n"scenarios": {']
    for number, (scenario, calls) in enumerate(recorded):
        about: dict[str, Any] = {"settings": scenario.settings}
        if scenario in generated:
            about = {"group": scenario.group, "purpose": scenario.purpose, **about}
        lines.append(f'"{scenario.name}": {json.dumps(about)[:-1]}, "calls": [')
        lines += [json.dumps(call) + ("," if i < len(calls) - 1 else "") for i, call in enumerate(calls)]
        lines.append("]}," if number < len(recorded) - 1 else "]}")
    return "\n".join([*lines, "}}"]) + "\n"
