"""The sheet of `mini-kv questions`, printed on A4 and read on a phone."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mini_kv.cli import main

pytestmark = pytest.mark.browser


def write_sheet(folder: Path, *words: str) -> str:
    """Write a sheet about the solutions and return its address."""
    file = folder / "sheet.html"
    assert main(["questions", "--labs", "solution", "--to", str(file), *words]) == 0
    return file.as_uri()


@pytest.mark.parametrize("lab", ["", "06", "11", "12"])
def test_the_sheet_is_two_pages_of_paper(lab: str, open_page: Callable[..., Any], tmp_path: Path) -> None:
    """Five questions on the first page, the answers on the second, whatever the states and the number."""
    for number in range(2):
        url = write_sheet(tmp_path, "--seed", str(number), *(["--lab", lab] if lab else []))
        page = open_page(url)
        paper = page.pdf(prefer_css_page_size=True)
        assert len(re.findall(rb"/Type\s*/Page\b", paper)) == 2
        assert page.locator("section").count() == 10


def test_the_sheet_can_be_read_on_a_phone(
    open_page: Callable[..., Any], axe: Callable[..., list[str]], tmp_path: Path
) -> None:
    """Nothing is cut off at 390 pixels, and a screen reader finds its way. It stays black on white: it is paper."""
    page = open_page(write_sheet(tmp_path), width=390, dark=True)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert axe(page) == []
