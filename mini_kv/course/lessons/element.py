"""The figure as a notebook widget: the book's element, controlled by the notebook's kernel.

    figure = story_element(data)        a widget for any box of ipywidgets; needs anywidget
    figure.story = other_data           the same figure continues with other data

For a page without a kernel, such as an exported one, `figure.fragment` puts the story into the page.
"""

from functools import cache
from importlib import resources
from typing import Any

from mini_kv.course.lessons.needs import need
from mini_kv.story import figure


def story_element(data: dict[str, Any]) -> Any:
    """Return a widget that shows this story. Raises `MissingPackageError` without anywidget."""
    return _widget_class()(story=data)


@cache
def _widget_class() -> Any:
    """Return the widget's class. It is made at the first call, because only notebooks need its package."""
    base: Any = need("anywidget").AnyWidget
    traitlets = need("traitlets")
    code = resources.files("mini_kv.course.lessons").joinpath("element.js").read_text(encoding="utf-8")

    class StoryElement(base):  # type: ignore[misc] # its package is loaded by name
        """`<kv-story>` with a story from the kernel."""

        _esm = f"{figure.script()}\n{code}"
        story = traitlets.Dict().tag(sync=True)

    return StoryElement
