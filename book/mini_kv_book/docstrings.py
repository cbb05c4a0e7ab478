"""Drawings in docstrings keep their columns on the API pages: there Markdown wants them indented."""

import re
from typing import Any

from griffe import Extension, Object


class Drawings(Extension):
    """Indents the paragraphs that are drawings, so that Markdown takes them for code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Mend the docstring of one module, class or function."""
        if obj.docstring:
            obj.docstring.value = with_drawings(obj.docstring.value)


def with_drawings(text: str) -> str:
    r"""Indent each paragraph that has columns: three spaces or more inside an unindented line.

    >>> with_drawings("Free.\n\nfree  next-> 10 <-last         the queue").splitlines()[-1]
    '    free  next-> 10 <-last         the queue'
    """
    paragraphs = re.split(r"\n(?=\n)", text)
    for index, paragraph in enumerate(paragraphs):
        if re.search(r"^\S.* {3,}\S", paragraph, re.MULTILINE):
            paragraphs[index] = re.sub(r"^(?=.)", "    ", paragraph, flags=re.MULTILINE)
    return "\n".join(paragraphs)
