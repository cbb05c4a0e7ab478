"""The lists of chapters and labs at the beginning of their parts: a card for each, in the order of reading."""

import re

from mini_kv_book import generate
from mini_kv_book.course import closed_sentence
from mini_kv_book.places import ROOT
from mini_kv_book.taught import chapter, lab, title_of


def chapters_as_markdown() -> str:
    """Return a card per chapter, under the names of the book's parts."""
    return parts({part: [chapter_card(name) for name in names] for part, names in chapters().items()})


def labs_as_markdown() -> str:
    """Return a card per lab, under the names of the parts that their chapters belong to."""
    return parts({part: [lab_card(name) for name in names] for part, names in labs().items() if names})


def afternoon_as_markdown() -> str:
    """Return the README's way through one afternoon, for the first page."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (way,) = re.findall(r"<!-- afternoon -->\n(.*?)\n<!-- end of afternoon -->", readme, re.DOTALL)
    return str(way).replace("](", "](../../")


def chapters() -> dict[str, list[str]]:
    """Return each part's chapters, without the endings of their files."""
    return {part: [file.removesuffix(".md") for file in files] for part, files in generate.chapters().items()}


def labs() -> dict[str, list[str]]:
    """Return each part's labs that are open, in the order of their chapters."""
    every = [name for name in generate.labs() if not closed_sentence(name)]
    return {
        part: [name for its_chapter in names for name in every if lab(name).chapter == its_chapter]
        for part, names in chapters().items()
    }


def parts(cards: dict[str, list[str]]) -> str:
    """Return the cards of all parts."""
    return "\n\n".join(
        f'## {part}\n\n<div class="kv-cards" markdown>\n{chr(10).join(its)}\n</div>' for part, its in cards.items()
    )


def chapter_card(name: str) -> str:
    """Return the card of a chapter."""
    about = chapter(name)
    return card(f"[{title_of(name)}]({name}.md)", about.picture, about.says, told(about.minutes, about.needs))


def lab_card(name: str) -> str:
    """Return the card of a lab."""
    about = lab(name)
    of = f"difficulty {about.difficulty} of 5 · chapter: [{title_of(about.chapter)}](../chapters/{about.chapter}.md)"
    title = f"[{name[4:6]} {about.title}]({name}.md)"
    return card(title, about.picture, about.says, f"{told(about.minutes, about.needs)} · {of}")


def told(minutes: int, needs: tuple[str, ...]) -> str:
    """Return the reading time of a page, and the badges of its requirements."""
    return " ".join([f"{minutes} minutes", *(f"[{need}]" for need in needs)])


def card(title: str, picture: str, says: str, below: str) -> str:
    """Return a card, as Markdown: a still, a title with a link to the page, a sentence."""
    return f"""<div markdown>
```kv-still
{picture}
```
### {title}
{says}

{below}
{{: .kv-told }}
</div>"""
