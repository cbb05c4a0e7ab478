"""Keeps the columns of drawings in docstrings on the API pages, by indenting them for Markdown."""

from typing import Any

from griffe import Extension, Object

from mini_kv_book.drawings import with_drawings


class Drawings(Extension):
    """Indents paragraphs that are drawings, so that Markdown treats them as code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Indent the drawings in the docstring of one module, class or function."""
        if obj.docstring:
            obj.docstring.value = with_drawings(obj.docstring.value)
