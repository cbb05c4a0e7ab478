"""Drawings in docstrings keep their columns on the API pages: there Markdown wants them indented."""

from typing import Any

from griffe import Extension, Object

from mini_kv_book.drawings import with_drawings


class Drawings(Extension):
    """Indents the paragraphs that are drawings, so that Markdown takes them for code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Mend the docstring of one module, class or function."""
        if obj.docstring:
            obj.docstring.value = with_drawings(obj.docstring.value)
