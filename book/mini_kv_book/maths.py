"""Formulas become MathML when the book is built: no script, no outside request."""

from xml.etree import ElementTree

from latex2mathml.converter import convert_to_element
from markdown.treeprocessors import Treeprocessor
from mkdocs.exceptions import BuildError

from mini_kv_book.places import where

_CHILDREN = {"mfrac": 2, "mroot": 2, "msub": 2, "msup": 2, "msubsup": 3, "munder": 2, "mover": 2, "munderover": 3}


class MathML(Treeprocessor):
    r"""Replaces the formulas marked by arithmatex, `\(...\)` and `\[...\]`."""

    def run(self, root: ElementTree.Element) -> None:
        """Replace each formula in place."""
        for element in list(root.iter()):
            if "arithmatex" in element.get("class", "").split() and element.text:
                formula = element.text.strip()[2:-2]
                element.append(self.drawn(formula, "block" if element.tag == "div" else "inline"))
                element.text = ""

    def drawn(self, formula: str, display: str) -> ElementTree.Element:
        """Return the formula as MathML. Raises `BuildError` for one that a browser could not draw."""
        try:
            math: ElementTree.Element = convert_to_element(formula, display=display)
        except Exception as error:  # latex2mathml has no common base class for its errors
            raise BuildError(f"{where(self.md, formula)}: {formula!r} is no formula: {error!r}") from error
        for part in math.iter():  # what latex2mathml lets through
            if (part.text or "").startswith("\\") or len(part) != _CHILDREN.get(part.tag, len(part)):
                name = part.text or part.tag
                raise BuildError(f"{where(self.md, formula)}: {formula!r} is no formula: see {name}")
        return math
