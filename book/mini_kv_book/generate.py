"""Generates files from the code: a page per module and lab, the navigation, notebooks' stills.

The address in `book/course.toml` is written into all files, too.

    make book-pages               or: python -m mini_kv_book.generate

The pages are not in git: MkDocs has them written when it loads `mini_kv_book.extension`. The navigation and the stills
are, and so is the list in labs/README.md. A test compares them with the generated ones, so that no module, no lab and
no chapter is missing. The navigation's lines for the chapters come from `PARTS` and the chapters' headings.
"""

import re
from pathlib import Path

from mini_kv import _HOMES
from mini_kv.course.labkit.lab import all_labs, load_lab
from mini_kv_book import course, stills
from mini_kv_book.places import DOCS, ROOT
from mini_kv_book.runs import source_of

PACKAGES = ("core", "story", "attention", "engine", "course/lessons", "dev/training")
CONFIG = ROOT / "book" / "mkdocs.yml"
LIST_OF_LABS = ROOT / "labs" / "README.md"
PARTS = {
    "Why": ("why-a-cache", "how-big-is-a-token"),
    "Blocks": ("blocks-instead-of-rows", "the-free-queue", "reference-counts"),
    "Sharing": (
        "a-name-for-a-prefix",
        "share-free-revive-evict",
        "slots-for-the-next-token",
        "hits-evictions-policies",
        "who-should-go",
        "agents",
    ),
    "Scheduling": ("who-runs-next", "windows-and-groups"),
    "Attention": (
        "from-table-to-slot",
        "attention-over-blocks",
        "the-kernel",
        "from-prompt-to-text",
        "control-plane-data-plane",
        "what-a-cache-buys",
    ),
    "Serving": (
        "why-batches-matter",
        "a-second-home",
        "served",
        "when-the-cache-misbehaves",
        "five-bugs-that-were-real",
    ),
    "Reading vLLM": ("reading-vllm",),
    "All together": ("rush-hour",),
}
"""The parts of the book and the files of their chapters, in the order of reading."""


def modules() -> list[str]:
    """Return the modules that have a page, in the order of their packages."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / "mini_kv" / package).rglob("[!_]*.py"))]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]


def labs() -> list[str]:
    """Return the labs that have a page. The second part of a lab is on the page of the first."""
    every = all_labs(ROOT)
    return [lab.lab_id for lab in every if lab.lab_id not in [other.second_part for other in every]]


def chapters() -> dict[str, dict[str, str]]:
    """Return each part's chapters, file to title, in the order of reading. Raises `ValueError` if one has no part."""
    files = {path.stem: path for path in (DOCS / "chapters").glob("*.md") if path.stem != "index"}
    if sorted(files) != sorted(name for names in PARTS.values() for name in names):
        raise ValueError(f"PARTS and the files in docs/chapters are not the same chapters: {sorted(files)}")
    return {part: {files[name].name: title_of(files[name]) for name in names} for part, names in PARTS.items()}


def title_of(path: Path) -> str:
    """Return a page's title, which is its heading."""
    heading = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    if heading is None:
        raise ValueError(f"{path.relative_to(ROOT)} has no heading")
    return heading[1]


def _lab_page(lab: str) -> str:
    """Return the page of a lab, as wide as the screen: README with the lab in it, then the instructor's part."""
    about = load_lab(ROOT / "labs" / lab)
    status = "status: triton\n" if about.needs == "K" else ""
    parts = [lab, *filter(None, [about.second_part])]
    return f"---\n{status}hide: [navigation, toc]\n---\n\n" + "\n".join(
        [f"<!-- include labs/{name}/README.md -->\n" for name in parts]
        + [f"<!-- instructor {name} -->\n" for name in parts]
    )


_MOVED = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'">
<title>{first}, part 2</title>
<meta http-equiv="refresh" content="0; url=../{first}/#part-2">
<link rel="canonical" href="../{first}/">
<p>This page is now <a href="../{first}/#part-2">part 2 of {first}</a></p>
</html>
"""
"""The page at the former address of a second part."""


def front_door() -> str:
    """Return a table of the public names, by their homes, with the first line of each docstring."""
    rows = ["| name | what it is |", "|---|---|"]
    for home, name in ((home, name) for home, names in _HOMES.items() for name in names):
        said = re.findall(r'"""(.+?)(?:"""|\n)', source_of(f"mini_kv.{home}.{name}").text)[0]
        rows.append(f"| [`{name}`](mini_kv.{home}.md#mini_kv.{home}.{name}) | {said} |")
    return "\n".join(rows)


LABS = """---
search:
  exclude: true
hide: [navigation, toc]
---

# The labs

In a lab you write what its chapter explains. The tests name the belief behind a mistake. A lab that needs Python alone
runs in its page, and no lab needs the solution of another one.

<!-- table labs -->
"""
"""The first page of the labs."""


def pages() -> dict[str, str]:
    """Return every generated page, by its path below docs."""
    boost = "---\nsearch:\n  boost: 0.5\n---\n\n"  # chapters first
    api = {f"api/{name}.md": f"{boost}# {name.removeprefix('mini_kv.')}\n\n::: {name}\n" for name in modules()}
    return api | {"labs/index.md": LABS} | {f"labs/{lab}.md": _lab_page(lab) for lab in labs()}


def _moved_pages() -> dict[str, str]:
    """Return the pages at the former addresses of second parts, by their paths below docs."""
    labs = [lab for lab in all_labs(ROOT) if lab.second_part]
    return {f"labs/{lab.second_part}/index.html": _MOVED.format(first=lab.lab_id) for lab in labs}


def navigation() -> dict[str, list[str]]:
    """Return the lines for mkdocs.yml between `# generated: NAME` and `# end of NAME`.

    Of the API first the front door, then the modules behind it, then the others, package by package.
    """
    public = [f"mini_kv.{home}" for home in _HOMES]
    groups = {"Behind the front door": public}
    for package in PACKAGES:
        inside = f"mini_kv.{package.replace('/', '.')}."
        groups[f"{Path(package).name}, inside"] = [
            name for name in modules() if name.startswith(inside) and name not in public
        ]
    api = ["      - api/index.md", "      - The front door: api/mini_kv.md"]
    for title, names in groups.items():
        api.append(f"      - {title}:")
        api += [f"          - {name.removeprefix('mini_kv.')}: api/{name}.md" for name in names]
    of_chapters = []
    for part, its_chapters in chapters().items():
        of_chapters.append(f"      - {part}:")
        of_chapters += [f'          - "{title}": chapters/{name}' for name, title in its_chapters.items()]
    return {
        "chapters": of_chapters,
        "labs": [f'      - "{lab[4:6]} {load_lab(ROOT / "labs" / lab).title}": labs/{lab}.md' for lab in labs()],
        "api": api,
    }


NEEDS = {"C": "Python", "T": "PyTorch, on a CPU", "K": "Triton, on Linux; no GPU"}
"""What a lab needs, in the list of labs/README.md."""


def with_list_of_labs(readme: str) -> str:
    """Return the text of labs/README.md with the list of the labs put in."""
    rows = ["| lab | needs | minutes |", "|---|---|---:|"]
    for lab in all_labs(ROOT):
        link = f"[{lab.lab_id[4:6]} {lab.title}]({lab.lab_id}/README.md)"
        rows.append(f"| {link} | {NEEDS[lab.needs]} | {lab.minutes} |")
    between = re.compile(r"(?<=<!-- generated: labs -->\n).*?(?=<!-- end of labs -->)", re.DOTALL)
    return between.sub(lambda _: "".join(f"{row}\n" for row in rows), readme)


def with_navigation(config: str) -> str:
    """Return the text of mkdocs.yml with the generated lines put in."""
    for name, lines in navigation().items():
        block = re.compile(rf"( *# generated: {name}.*\n)(?:.*\n)*?( *# end of {name}\n)")
        config, count = block.subn(lambda found: found[1] + "".join(f"{x}\n" for x in lines) + found[2], config)  # noqa: B023
        if count != 1:
            raise ValueError(f"mkdocs.yml has no lines `# generated: {name}` and `# end of {name}`")
    return course.with_course(config, course.course())


def publish(text: str, path: Path) -> None:
    """Write the files of the site that the repository keeps elsewhere. A file without changes is not written.

    `mkdocs serve` watches the folder, so a file that is written each time would cause endless builds.
    """
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8", newline="\n")


def write_pages(docs: Path = DOCS) -> None:
    """Write the pages that changed, and delete those of removed modules and labs."""
    wanted = {docs / name: text for name, text in pages().items()}
    for path in {*docs.glob("api/mini_kv.*.md"), *docs.glob("labs/*.md")} - {*wanted}:
        path.unlink()
    for path, text in (wanted | {docs / name: text for name, text in _moved_pages().items()}).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        publish(text, path)


def main() -> None:
    """Write everything that changed."""
    course.write()
    write_pages()
    for path, text in stills.notebooks().items():
        publish(text, path)
    publish(with_navigation(CONFIG.read_text(encoding="utf-8")), CONFIG)
    publish(with_list_of_labs(LIST_OF_LABS.read_text(encoding="utf-8")), LIST_OF_LABS)


if __name__ == "__main__":
    main()
