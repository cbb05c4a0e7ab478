"""A run of one mark imports only the test files that contain it: `make e2e` would wait for the import of all others."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
pytest_plugins = ["pytester"]
CONFTEST = (Path(__file__).parents[2] / "conftest.py").read_text(encoding="utf-8")
MARKED = "import pytest\n\n@pytest.mark.browser\ndef test_marked():\n    pass\n"
BROKEN = "raise SystemError('imported')\n\ndef test_other():\n    pass\n"


@pytest.fixture
def run(pytester: pytest.Pytester):
    """A function that runs a marked file and one that cannot be imported, with options."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_marked=MARKED, test_other=BROKEN)
    return lambda *options: pytester.runpytest_subprocess("-W", "ignore", *options)


def test_a_file_without_the_mark_is_not_imported(run):
    run("-m", "browser").assert_outcomes(passed=1)


@pytest.mark.parametrize("options", [(), ("-m", "slow"), ("-m", "browser or slow")])
def test_without_a_mark_or_with_several_words_every_file_is_imported(run, options):
    done = run(*options)
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*SystemError: imported*"])
