"""Tables that are made from code and data, where a page says so.

    <!-- table conformance -->

The table's Markdown takes the place of that line before the page is read, so that its headings, links and words are the
page's own: in the contents, in the search, and checked like any other. The line may be indented: inside a fold, it is.
"""

import re
from collections.abc import Callable
from functools import partial

from markdown.preprocessors import Preprocessor
from mkdocs.exceptions import BuildError

from mini_kv.course.verify import deviations
from mini_kv_book import course, curriculum, elements, generate, kill_matrix, recorded, spine, upgrade, upstream
from mini_kv_book.places import ROOT, where

_TABLES: dict[str, Callable[..., str]] = {
    "afternoon": curriculum.afternoon_as_markdown,
    "chapters": curriculum.chapters_as_markdown,
    "conformance": recorded.conformance,
    "conformance-summary": recorded.conformance_summary,
    "course": course.dates,
    "deviations": deviations.as_markdown,
    "drafts": recorded.drafts,
    "front-door": generate.front_door,
    "kernels": recorded.kernels,
    "kernels-measured": recorded.kernels_measured,
    "kills": kill_matrix.as_markdown,
    "labs": curriculum.labs_as_markdown,
    "league": recorded.league,
    "licences": recorded.licences,
    "names": upstream.names,
    "options": upstream.options,
    "puzzles": elements.puzzles,
    "recorded": recorded.generation,
    "serving": upstream.serving,
    "source-lens": upstream.source_lens,
    "spine": spine.stop_as_markdown,
    "spine-picture": spine.picture,
    "spine-total": spine.total,
    "symptoms": partial((ROOT / "book" / "data" / "symptoms.md").read_text, encoding="utf-8"),
    "tiers": recorded.tiers,
    "upgrade": upgrade.as_markdown,
}
"""The tables by name. Words after the name are passed on."""

_REQUEST = re.compile(r"( *)<!-- table (.+) -->")


def made(request: str) -> str:
    """Return the Markdown of a table, such as `conformance` or `serving memory`. Raises `ValueError` if unknown."""
    name, *arguments = request.split()
    if name not in _TABLES:
        raise ValueError(f"there is no table {name!r}; there are: {', '.join(_TABLES)}")
    return _TABLES[name](*arguments)


class Tables(Preprocessor):
    """Inserts the tables."""

    def run(self, lines: list[str]) -> list[str]:
        """Return the page's lines with every table inserted. An unknown table stops the build, with file and line."""
        out: list[str] = []
        for line in lines:
            request = _REQUEST.fullmatch(line)
            try:
                out += [request[1] + row for row in made(request[2]).split("\n")] if request else [line]
            except (TypeError, ValueError, KeyError) as error:
                raise BuildError(f"{where(self.md, line)}: {error}") from error
        return out
