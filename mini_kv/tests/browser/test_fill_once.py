"""A folder that several tests share is filled once. A fill that failed is not tried again. No browser takes part."""

import pytest

from mini_kv.tests.browser.fill_once import fill_once

pytestmark = pytest.mark.browser  # `make e2e` brings filelock


def test_the_first_call_fills_the_folder_and_the_second_finds_it_full(tmp_path):
    calls = []

    def fill(folder):
        calls.append(folder)
        folder.mkdir(parents=True)

    assert [fill_once(tmp_path, "book", fill) for _ in range(2)] == [tmp_path / "once" / "book"] * 2
    assert calls == [tmp_path / "once" / "book"]


def test_a_fill_that_failed_is_remembered_with_its_error(tmp_path):
    """Ten tests that wait for one book, each tried three times, would build it thirty times."""
    calls = []

    def fill(folder):
        calls.append(folder)
        raise AssertionError("WARNING - a link leads nowhere")

    with pytest.raises(AssertionError, match=r"^WARNING - a link leads nowhere$"):
        fill_once(tmp_path, "book", fill)
    for _ in range(2):
        with pytest.raises(AssertionError) as caught:
            fill_once(tmp_path, "book", fill)
        assert str(caught.value) == ("book was tried once and failed: AssertionError: WARNING - a link leads nowhere")
    assert calls == [tmp_path / "once" / "book"]
    assert not (tmp_path / "book.done").exists()


def test_an_interrupt_is_not_a_failure(tmp_path):
    """Who pressed Ctrl-C wants no error from it in the next call."""

    def interrupted(folder):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill_once(tmp_path, "book", interrupted)
    assert fill_once(tmp_path, "book", lambda folder: None) == tmp_path / "once" / "book"
