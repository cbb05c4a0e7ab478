"""Drawings in a notebook that is not trusted: a sentence in their place.

Jupyter removes styles, scripts and drawings from the output of such a notebook, and keeps their texts: a figure would
be a row of digits, and a hidden answer would be shown. It keeps the attribute `hidden`, which only a style undoes.
"""

from typing import Any

STYLE = "<style>.kv-untrusted{display:none}.kv-trusted[hidden]{display:block!important}</style>"
"""Shows what `hidden` hides, where styles are in effect."""
SENTENCE = (
    '<p class="kv-untrusted"><em>The engine\'s result is hidden while this notebook is not trusted: run the cell, or'
    " choose Trust Notebook in the menu File.</em></p>"
)


def trusted(drawing: str) -> str:
    """Return the HTML of a drawing, which is shown in a trusted notebook only, and of the sentence for the others."""
    return f'{STYLE}{SENTENCE}<div class="kv-trusted" hidden>{drawing}</div>'


def plain(drawing: Any) -> str:
    """Return the HTML of a drawing without what only a notebook needs: for a page, or for a lever with many of them."""
    return str(drawing.fragment() if hasattr(drawing, "fragment") else drawing._repr_html_())
