"""Applies `book/course.toml`: the address in all files that have it, and the labs that are shown.

It is a hook of MkDocs, too: the book is built with the course's title, address and language.

mini-kv class address URL              writes the address of your copy into all of these files
python -m mini_kv_book.course     prints the course, and whether it can be published
"""

import re
import sys
from pathlib import Path
from typing import Any

from mini_kv import __version__
from mini_kv.course.labkit.course_settings import FILE, Course, load_course
from mini_kv_book.places import ROOT, repository_url

_CARRIERS = ("README.md", "pyproject.toml", ".binder", ".github", "book/docs", "book/mkdocs.yml", "notebooks")
"""Files and folders that contain the address."""
_READ = {".md", ".toml", ".yml", ".ipynb", ".txt"}
CONFIG = ROOT / "book" / "mkdocs.yml"
_SITE = re.compile(r"(<!-- site -->\n).*?(?=<!-- end of site -->)", re.DOTALL)
"""The lines of the README that say where the book is."""


def course() -> Course:
    """Return the course."""
    return load_course(ROOT)


def on_config(config: Any) -> None:
    """Build the book with the course's title, address and language, and a link to its repository if that is known."""
    new = course()
    config.site_name, config.theme["language"] = new.name, new.language
    if new.address:
        config.site_url = new.site_url
    if new.has_address:
        config.repo_url, config.repo_name = new.address, "Repository"
        config.extra |= {"new_issue": _new_issue(new.address), "engine": __version__}


def _new_issue(address: str) -> str:
    """Return the address of a new issue's form, up to its fields: a page adds a title, and after it a text.

    >>> _new_issue("https://github.com/a/kv")
    'https://github.com/a/kv/issues/new?body={body}&title={title}'
    """
    if "gitlab" in address:
        return f"{address}/-/issues/new?issue[description]={{body}}&issue[title]={{title}}"
    return f"{address}/issues/new?body={{body}}&title={{title}}"


def closed_sentence(lab: str) -> str:
    """Return the reason why the lab is not shown, or "" if it is."""
    return course().closed().get(lab, "")


def addressed(text: str, old: str, new: Course) -> str:
    """Return a file's text with the new address in place of the old one, also in links to Colab and Binder.

    A `cd` after a `git clone` gets the folder that the clone makes.

    Args:
        text: the file's text.
        old: the repository's old address.
        new: the course.
    """
    before, after = (address.rstrip("/").removeprefix("https://") for address in (old, new.address))
    text = re.sub(rf"{re.escape(before)}(?![\w.-]*\w)", after, text)
    (_, _, old_name), (host, _, new_name) = before.partition("/"), after.partition("/")
    old_folder, new_folder = old_name.rpartition("/")[2], new_name.rpartition("/")[2]
    cloned = rf"(git clone .*{re.escape(after)}\n%?cd ){re.escape(old_folder)}(?=\n)"
    text = re.sub(cloned, lambda found: found[1] + new_folder, text)
    text = _SITE.sub(lambda found: found[1] + where_the_book_is(new), text)
    text = text.replace(
        f"colab.research.google.com/github/{old_name}/", f"colab.research.google.com/github/{new_name}/"
    )
    kind = "gl" if host.startswith("gitlab") else "gh"
    where = new_name.replace("/", "%2F") if kind == "gl" else new_name
    return re.sub(rf"mybinder\.org/v2/g[hl]/{_name(old_name)}/", f"mybinder.org/v2/{kind}/{where}/", text)


def where_the_book_is(new: Course) -> str:
    """Return the README's lines on the book: its address, or how to give it one."""
    if new.has_address:
        lines = [
            f"**[The book]({new.site_url})** is published: its figures move, and labs run in their pages.",
            "`make book` serves the same on your machine.",
        ]
    else:
        lines = [
            "`make book` serves the book on your machine, where figures move: two minutes, without PyTorch and npm.",
            "This copy has no address yet: `mini-kv class address https://github.com/ME/mini_kv` sets it",
            "([publishing](book/docs/teach/publishing.md)).",
        ]
    return "".join(f"{line}\n" for line in lines)


def _name(name: str) -> str:
    return f"(?:{re.escape(name)}|{re.escape(name.replace('/', '%2F'))})"


def with_course(config: str, new: Course) -> str:
    """Return the text of mkdocs.yml with the course's title, address and language."""
    for key, value in (("site_name", new.name), ("site_url", new.site_url), ("  language", new.language)):
        line = re.compile(rf"^{key}: [^#\n]*?(?P<comment> #.*)?$", re.MULTILINE)
        plain = value.replace("\\", r"\\")
        config, count = line.subn(rf"{key}: {plain}\g<comment>", config)
        if count != 1:
            raise ValueError(f"mkdocs.yml has no line {key.strip()}")
    return config


def published_at() -> str:
    """Return the book's current address, from mkdocs.yml."""
    (found,) = re.findall(r"^site_url: (\S+)", CONFIG.read_text(encoding="utf-8"), re.MULTILINE)
    return str(found)


def _carriers() -> list[Path]:
    """Return the files that may contain the address."""
    found = [ROOT / name for name in _CARRIERS]
    return sorted(
        path for top in found for path in ([top] if top.is_file() else top.rglob("*")) if path.suffix in _READ
    )


def write() -> int:
    """Put the course's address into every file with the old one, and return the number of changed files.

    pyproject.toml has the old address, so it is the last. After an interrupt the same call writes the rest.
    """
    new, old, old_site = course(), repository_url(), published_at()
    last = ROOT / "pyproject.toml"
    count = 0
    for path in [*(path for path in _carriers() if path != last), last]:
        text = path.read_text(encoding="utf-8")
        changed = addressed(text, old, new).replace(old_site, new.site_url)
        if path == CONFIG:
            changed = with_course(changed, new)
        if changed != text:
            path.write_text(changed, encoding="utf-8", newline="\n")
            count += 1
    return count


def move(address: str) -> int:
    """Make this the address of the repository in every file that has one. Return the number of changed files.

    Raises `ValueError` for anything but `https://HOST/ACCOUNT/NAME`. Nothing is changed then.
    """
    if not re.fullmatch(r"https://[\w.-]+(/[\w.-]+){2,}/?", address):
        raise ValueError(f"{address!r} is not the address of a repository, such as https://github.com/ME/mini_kv")
    address = address.rstrip("/").removesuffix(".git")
    file = ROOT / FILE
    text = file.read_text(encoding="utf-8")
    line = re.compile(r'^address = "[^"]*"', re.MULTILINE)
    if len(line.findall(text)) != 1:
        raise ValueError(f'{FILE} has no line `address = "..."`')
    changed = line.sub(f'address = "{address}"', text)
    file.write_text(changed, encoding="utf-8", newline="\n")
    return write() + (changed != text)


def dates() -> str:
    """Return the course's note, and the days on which labs open, if there are any."""
    new = course()
    opens = [f"| [{lab}](labs/{lab}.md) | {day} |" for lab, day in sorted(new.opens.items()) if lab not in new.hidden]
    table = ["", "| lab | opens on |", "|---|---|", *opens] if opens else []
    return "\n".join([new.notes, *table])


def faults() -> list[str]:
    """Return the reasons why the course cannot be published, one sentence each."""
    new = course()
    if not new.has_address:
        return [
            f"{FILE} says {new.address}. Put your own address there: mini-kv class address https://github.com/ME/mini_kv"
        ]
    if new.address != repository_url():
        return [f"{FILE} has changed: make book-pages brings it to the files that follow from it"]
    return []


def main() -> int:
    """Print the course, and return 1 if it cannot be published. `--notice`: print only the missing parts, return 0."""
    found = faults()
    for line in found:
        print(line, file=sys.stderr)
    if "--notice" not in sys.argv:
        new = course()
        print(f"{new.name}: {new.address}, published at {new.site_url}; {len(new.closed())} labs not shown")
    return bool(found) and "--notice" not in sys.argv


if __name__ == "__main__":
    sys.exit(main())
