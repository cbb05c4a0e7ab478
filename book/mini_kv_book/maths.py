"""Formulas become MathML when the book is built: no script, no outside request."""

from xml.etree import ElementTree

from latex2mathml.converter import convert_to_element
from markdown.treeprocessors import Treeprocessor
from mkdocs.exceptions import BuildError

from mini_kv_book.places import where


class MathML(Treeprocessor):
    r"""Replaces what arithmatex marked, `\(...\)` and `\[...\]`."""

    def run(self, root: ElementTree.Element) -> None:
        """Replace each formula where it stands."""
        for element in list(root.iter()):
            if "arithmatex" in element.get("class", "").split() and element.text:
                formula = element.text.strip()[2:-2]
                display = "block" if element.tag == "div" else "inline"
                try:
                    drawn = convert_to_element(formula, display=display)
                except Exception as error:  # latex2mathml has no common base class for its errors
                    raise BuildError(f"{where(self.md, formula)}: {formula!r} is no formula: {error!r}") from error
                element.text = ""
                element.append(drawn)
