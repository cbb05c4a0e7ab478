"""What changed between two versions of vLLM: the comparison finds what is planted, and the page shows what is held."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mini_kv_book import upgrade
from mini_kv_book.upstream import files_with, recording

from mini_kv.course.verify import manager
from mini_kv.course.verify.adapter import NotBuiltError
from mini_kv.course.verify.adapters.mini_kv_manager import ManagerAdapter
from mini_kv.dev.recorders import compare_names, upstream, versions
from mini_kv.dev.recorders.compare_calls import changed_calls, differences, with_changes
from mini_kv.dev.recorders.record_names import CONFIGS
from mini_kv.dev.recorders.record_names import record as record_names

HELD = {
    "two requests": {
        "settings": {"groups": ""},
        "calls": [
            ["new A 0..3", {"result": "4 tokens", "free": "1..9"}],
            ["free A", {"result": "ok"}],
            ["new B 0..3", {"result": "4 tokens"}],
        ],
    },
    "one request": {"settings": {}, "calls": [["new A 0", {"result": "1 tokens", "free": "1..9"}]]},
}
"""A made-up recording of two scenarios."""


def planted(number: int, **fields: str) -> dict[str, Any]:
    """Return the recording with fields of a call of the first scenario changed."""
    other: dict[str, Any] = json.loads(json.dumps(HELD))
    other["two requests"]["calls"][number - 1][1] |= fields
    return other


# Calls.


def test_equal_recordings_have_no_difference() -> None:
    assert changed_calls(HELD, HELD) == {}
    assert list(differences(HELD, HELD)) == []


def test_a_planted_difference_is_found_at_its_call() -> None:
    other = planted(2, free="2..9")
    (found,) = differences(HELD, other)
    assert found.scenario == "two requests"
    assert found.calls == ("new A 0..3", "free A")
    assert found.fields == {"free": ("1..9", "2..9")}


def test_a_state_that_stays_different_counts_at_each_call() -> None:
    (found,) = differences(HELD, planted(2, free="2..9"))
    assert found.num_calls == 2
    (found,) = differences(HELD, planted(2, result="refused"))
    assert found.num_calls == 1


def test_the_other_recording_is_made_again_from_what_differs() -> None:
    other = planted(3, result="error KeyError", free="1..8")
    changes = changed_calls(HELD, other)
    assert changes == {"two requests": {"3": {"result": "error KeyError", "free": "1..8"}}}
    assert with_changes(HELD, changes) == {"two requests": other["two requests"]}


def test_what_the_other_version_cannot_play_is_named_with_the_reason() -> None:
    other = {"one request": HELD["one request"]}
    found = upstream.changes_of("manager", HELD, other, "not recorded: two requests: there is no second\n1 scenario\n")
    assert found == {"compared": 1, "left_out": {"two requests": "there is no second"}, "changes": {}}


def test_a_plan_that_differs_is_kept_whole() -> None:
    held = {"Llama": {"num_blocks": 10}, "Qwen": {"num_blocks": 7}}
    found = upstream.changes_of("planning", held, {"Llama": {"num_blocks": 10}, "Qwen": {"num_blocks": 8}}, "")
    assert found == {"compared": 2, "left_out": {}, "changes": {"Qwen": {"num_blocks": 8}}}


# What the recorders do for another version.


def hasher(block_size: int, lookahead: int = 0) -> None:
    """Stand in for a function of vLLM."""


def test_an_option_is_passed_to_a_version_that_has_it() -> None:
    assert versions.options_of(hasher, lookahead=3) == {"lookahead": 3}


def test_an_option_that_a_version_lacks_is_left_out_if_it_is_not_set() -> None:
    assert versions.options_of(hasher, lookahead=3, drafts=0) == {"lookahead": 3}


def test_a_scenario_that_sets_an_option_that_a_version_lacks_is_not_played(capsys: pytest.CaptureFixture[str]) -> None:
    class WithoutLookahead(ManagerAdapter):
        def do_start(self, message: dict[str, Any]) -> None:
            versions.options_of(object, num_hash_lookahead_tokens=message["settings"]["num_hash_lookahead_tokens"])
            super().do_start(message)

    with pytest.raises(NotBuiltError, match="hasher has no drafts"):
        versions.options_of(hasher, drafts=1)
    one = manager.load_scenarios()[0]
    other = replace(one, name="with lookahead", settings={**one.settings, "num_hash_lookahead_tokens": 1})
    played = versions.playable([one, other], lambda settings: manager.Player(WithoutLookahead(), settings))
    assert [scenario.name for scenario, _ in played] == [one.name]
    assert capsys.readouterr().out == "not recorded: with lookahead: object has no num_hash_lookahead_tokens\n"


# Names.


def package(folder: Path, files: dict[str, str]) -> dict[str, Any]:
    """Return the recorded names of a made-up vLLM."""
    empty = dict.fromkeys(("config/cache.py", "engine/arg_utils.py", "v1/metrics/loggers.py", *CONFIGS), "")
    for name, text in (empty | files).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    recorded: dict[str, Any] = json.loads(record_names(folder))
    return recorded


UTILS, PLANNING = "v1/core/kv_cache_utils.py", "v1/core/kv_cache_planning.py"


def test_names_that_moved_are_gone_or_new_are_found_where_they_are_used(tmp_path: Path) -> None:
    old = package(
        tmp_path / "old", {UTILS: "def plan(a): ...\ndef leave(): ...\nclass Pool:\n    def touch(self): ...\n"}
    )
    new = package(tmp_path / "new", {UTILS: "def join(): ...\n", PLANNING: "def plan(a, b): ...\n"})
    pages = {"a page": "`plan` and `Pool.touch`, then `join`", "another": "explanation"}
    found = compare_names.changed_names(old, new, lambda name: compare_names.users(name, pages))
    assert found["moved"] == {"plan": [UTILS, PLANNING, ["a page"]]}
    assert found["gone"] == {"Pool": [UTILS, ["a page"]]}
    assert found["new"] == {"join": [UTILS, ["a page"]]}
    assert found["counts"] == {"moved": 1, "gone": 3, "new": 1}
    assert found["parameters"] == {"plan": {"gone": [], "new": ["b"]}}


def test_a_recorder_may_use_a_member_without_its_class() -> None:
    files = {
        "mini_kv/dev/recorders/record.py": "pool.touch(blocks)",
        "book/docs/a.md": "a touch of class",
        "b.md": "Pool.touch",
    }
    assert compare_names.users("Pool.touch", files) == ["mini_kv/dev/recorders/record.py", "b.md"]
    assert compare_names.users("Pool.__init__", {"mini_kv/dev/recorders/record.py": "other.__init__()"}) == []


def test_another_default_a_new_setting_and_a_setting_that_is_gone_are_found(tmp_path: Path) -> None:
    cache = "class CacheConfig:\n    block_size: int = {}\n    {}: int = 0\n"
    old = package(tmp_path / "old", {"config/cache.py": cache.format(16, "swap_space")})
    new = package(tmp_path / "new", {"config/cache.py": cache.format(32, "retention")})
    found = compare_names.changed_names(old, new, lambda name: [])
    assert found["settings"] == {
        "CacheConfig.block_size": ["16", "32"],
        "CacheConfig.retention": [None, "0"],
        "CacheConfig.swap_space": ["0", None],
    }


def test_a_version_has_no_other_names_than_itself() -> None:
    names = recording()
    found = compare_names.changed_names(names, names, lambda name: ["everywhere"])
    assert found.pop("counts") == {"moved": 0, "gone": 0, "new": 0}
    assert not any(found.values())


# What is held, and its page.


def test_what_is_held_fits_the_recordings() -> None:
    """Else a scenario was added or changed since: make upstream, with the other version."""
    found = upgrade.changes()
    assert found["held"] == recording()["version"] in upgrade.versions()
    for part, (_, path) in upstream.RECORDERS.items():
        held = upstream.load(path)
        assert found[part]["compared"] + len(found[part]["left_out"]) == len(held), part
        assert {*found[part]["changes"], *found[part]["left_out"]} <= held.keys(), part


def test_every_call_that_is_held_differs() -> None:
    for part in ("manager", "scheduler"):
        path = upgrade.RECORDINGS[part]
        held, changes = upstream.load(path), upgrade.changes()[part]["changes"]
        assert changed_calls(held, {**held, **with_changes(held, changes)}) == changes


def test_every_difference_has_one_cause() -> None:
    for part in upgrade.RECORDINGS:
        assert None not in upgrade.by_cause(part), part
        for difference in upgrade.found_in(part):
            causes = [cause for cause in upgrade.causes() if cause.part == part and cause.explains(difference)]
            assert len(causes) == 1, difference.scenario


def test_a_cause_names_a_place_in_vllm_and_explains_something() -> None:
    for cause in upgrade.causes():
        assert files_with(cause.symbol), cause.symbol
        assert cause in upgrade.by_cause(cause.part), cause.title


def test_the_page_shows_every_difference() -> None:
    for part in ("manager", "scheduler"):
        table = upgrade.as_markdown(part)
        assert re.findall(r"^    - (.+)$", table, re.MULTILINE) == [
            difference.scenario for group in upgrade.by_cause(part).values() for difference in group
        ]
        assert all(reason in table for reason in upgrade.changes()[part]["left_out"].values())
    plans = upgrade.as_markdown("planning")
    assert all(f"| {name} |" in plans for name in upgrade.changes()["planning"]["changes"])
    names, found = upgrade.as_markdown("names"), upgrade.changes()["names"]
    assert all(f"| `{name}` |" in names for kind in ("moved", "gone", "new", "parameters") for name in found[kind])
    settings = upgrade.as_markdown("settings")
    assert all(f"| `{name}` |" in settings for name in found["settings"])
