"""The list of mutants that cannot be seen is about the code as it is, not as it was."""

import pytest

from mini_kv.tests.mutants import LIST, LISTS, changed_lines, is_wording, listed_changes

PACKAGE = LIST.parents[1]


def test_what_is_measured_is_there() -> None:
    for package in LISTS["package"].values():
        for path in package["only_mutate"] + package["pytest_add_cli_args_test_selection"]:
            file, _, name = path.partition("::")
            found = list(PACKAGE.parent.glob(file))
            assert found and (not name or f"def {name}(" in found[0].read_text(encoding="utf-8")), path


def test_a_listed_change_is_known_by_its_diff() -> None:
    """mutmut shows a function, indented as it likes; the list holds parts of a module."""
    diff = "# survived\n--- a.py\n+++ a.py\n@@ -1 +1 @@\n a\n-    if num_new <= 0:\n+    if num_new < 0:\n"
    assert changed_lines(diff) == ["-if num_new <= 0:", "+if num_new < 0:"]
    assert changed_lines(diff) in listed_changes()


@pytest.mark.parametrize(
    ("was", "now", "wording"),
    [
        ('raise E("no such block")', 'raise E("XXno such blockXX")', True),
        ('raise E("no such block")', 'raise E("NO SUCH BLOCK")', True),
        ('raise E("no such block")', "raise E(None)", False),
        ('return "big"', 'return "XXbigXX"', False),
        ("zip(a, b, strict=True)", "zip(a, b, strict=False)", True),
        ("zip(a, b, strict=True)", "zip(a, b, )", True),
        ("zip(a, b, strict=True)", "zip(a, strict=True)", False),
    ],
)
def test_words_and_lengths_that_are_always_equal(was: str, now: str, wording: bool) -> None:
    assert is_wording([f"-{was}", f"+{now}"]) is wording
