"""What the recorders do differently for different versions of vLLM. It is the only file that knows of two versions.

`make upstream VERSION=x` runs the recorders with an older or a newer vLLM than the one that the goldens were recorded
from. An option that a version lacks is left out here. A name that has moved is imported here.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mini_kv.course.verify.adapter import NotBuiltError
from mini_kv.course.verify.scenario_language import Scenario


def options_of(function: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Return the options that this vLLM's function has. Raises `NotBuiltError` if it lacks one that is set."""
    known = inspect.signature(function).parameters
    lacking = sorted(name for name, value in options.items() if value and name not in known)
    if lacking:
        raise NotBuiltError(f"{function.__qualname__} has no {', '.join(lacking)}")
    return {name: value for name, value in options.items() if name in known}


def playable(scenarios: Iterable[Scenario], make: Callable[[dict[str, Any]], Any]) -> Iterator[tuple[Scenario, Any]]:
    """Yield each scenario with a player. A scenario that this vLLM cannot play is printed, with the reason."""
    for scenario in scenarios:
        player = make(scenario.settings)
        if player.skipped:
            print(f"not recorded: {scenario.name}: {player.skipped}")
        else:
            yield scenario, player


def plan_cache(vllm_config: Any, specs: dict[str, Any], memory: int) -> Any:
    """Return the plan of one worker's cache. Since 0.33 planning has its own file, and layers are grouped first."""
    try:
        from vllm.v1.core.kv_cache_planning import (  # type: ignore[import-not-found, unused-ignore]
            get_global_kv_cache_groups,
            get_kv_cache_configs,
        )
    except ImportError:
        from vllm.v1.core.kv_cache_utils import (  # type: ignore[import-not-found, unused-ignore]
            get_kv_cache_configs,
        )

        (planned,) = get_kv_cache_configs(vllm_config, [specs], [memory])
        return planned
    groups = get_global_kv_cache_groups(vllm_config, [specs])
    (planned,) = get_kv_cache_configs(vllm_config, [specs], [memory], groups)
    return planned
