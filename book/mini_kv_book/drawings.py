"""Finds the drawings in a docstring, so that their columns are kept. Needs no package of the book's build."""

import re


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
