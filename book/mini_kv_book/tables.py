"""Tables that are made from code and data, where a page says so.

    <!-- table conformance -->

The table's Markdown takes the place of that line before the page is read, so that its headings, links and words are the
page's own: in the contents, in the search, and checked like any other. The line may be indented: inside a fold, it is.
"""

import re
from collections.abc import Callable
from typing import Any

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.exceptions import BuildError

from mini_kv.course.verify import deviations
from mini_kv_book import (
    conformance,
    course,
    drafts,
    generate,
    kernels,
    kill_matrix,
    league,
    licences,
    names,
    options,
    overview,
    puzzles,
    recorded,
    second_home,
    serving,
    source_lens,
    spine,
    upgrade,
)
from mini_kv_book.places import where

TABLES: dict[str, Callable[..., str]] = {
    "afternoon": overview.afternoon_as_markdown,
    "chapters": overview.chapters_as_markdown,
    "conformance": conformance.as_markdown,
    "conformance-summary": conformance.summary,
    "course": course.dates,
    "deviations": deviations.as_markdown,
    "drafts": drafts.as_markdown,
    "front-door": generate.front_door,
    "kernels": kernels.as_markdown,
    "kernels-measured": kernels.measured_as_markdown,
    "kills": kill_matrix.as_markdown,
    "labs": overview.labs_as_markdown,
    "league": league.as_markdown,
    "licences": licences.as_markdown,
    "names": names.as_markdown,
    "options": options.as_markdown,
    "puzzles": puzzles.as_markdown,
    "recorded": recorded.as_markdown,
    "serving": serving.as_markdown,
    "source-lens": source_lens.as_markdown,
    "spine": spine.stop_as_markdown,
    "spine-picture": spine.picture,
    "spine-total": spine.total,
    "tiers": second_home.as_markdown,
    "upgrade": upgrade.as_markdown,
}
"""The tables by name. Words after the name are passed on."""

REQUEST = re.compile(r"( *)<!-- table (.+) -->")


def made(request: str) -> str:
    """Return the Markdown of a table, such as `conformance` or `serving memory`. Raises `ValueError` if unknown."""
    name, *arguments = request.split()
    if name not in TABLES:
        raise ValueError(f"there is no table {name!r}; there are: {', '.join(TABLES)}")
    return TABLES[name](*arguments)


class Tables(Preprocessor):
    """Inserts the tables."""

    def run(self, lines: list[str]) -> list[str]:
        """Return the page's lines with every table inserted. An unknown table stops the build, with file and line."""
        out: list[str] = []
        for line in lines:
            request = REQUEST.fullmatch(line)
            try:
                out += [request[1] + row for row in made(request[2]).split("\n")] if request else [line]
            except (TypeError, ValueError) as error:
                raise BuildError(f"{where(self.md, line)}: {error}") from error
        return out


class TablesExtension(Extension):
    """The name for mkdocs.yml: `mini_kv_book.tables`."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Register the preprocessor, before fences (25) are read."""
        md.preprocessors.register(Tables(md), "kv_tables", 30)


def makeExtension(**options: Any) -> TablesExtension:
    """Return the extension: how Markdown finds it by the module's name."""
    return TablesExtension(**options)
