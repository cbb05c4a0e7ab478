"""Tables that are made from code and data, where a page says so.

    ```kv-table
    coverage
    ```

The table's Markdown takes the place of the fence before the page is read, so that its headings, links and words are the
page's own: in the contents, in the search, and checked like any other.
"""

import re
from collections.abc import Callable
from typing import Any

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mini_kv_book import coverage, kill_matrix, names, serving

from mini_kv.core import deviations

TABLES: dict[str, Callable[..., str]] = {
    "coverage": coverage.as_markdown,
    "coverage-summary": coverage.summary,
    "coverage-waiting": coverage.waiting_as_markdown,
    "deviations": deviations.as_markdown,
    "kills": kill_matrix.as_markdown,
    "names": names.as_markdown,
    "serving": serving.as_markdown,
}
"""What a fence may ask for; words after the name are passed on."""

FENCE = re.compile(r"^```kv-table\n(.+?)\n```$", re.MULTILINE)


def made(request: str) -> str:
    """Return the Markdown of a table, such as `coverage` or `serving memory`. Raises `ValueError` if unknown."""
    name, *arguments = request.split()
    if name not in TABLES:
        raise ValueError(f"kv-table: there is no table {name!r}; there are: {', '.join(TABLES)}")
    return TABLES[name](*arguments)


class Tables(Preprocessor):
    """Puts the tables in."""

    def run(self, lines: list[str]) -> list[str]:
        """Return the page's lines with every kv-table fence replaced."""
        text = FENCE.sub(lambda fence: made(fence[1]), "\n".join(lines))
        return text.split("\n")


class TablesExtension(Extension):
    """The name for mkdocs.yml: `mini_kv_book.tables`."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Register the preprocessor, before fences (25) are read."""
        md.preprocessors.register(Tables(md), "kv_tables", 30)


def makeExtension(**options: Any) -> TablesExtension:
    """Return the extension: how Markdown finds it by the module's name."""
    return TablesExtension(**options)
