"""Finds the solutions' code in a built book: in pages, search index and archives.

    python -m mini_kv_book.leaks book/site

A leak is the body of a function of solutions/, five statements or more, or any five lines of it in a row: whatever the
highlighting, the indentation and the comments. Lines that the engine, the starters or the labs' tests have too give
nothing away.
"""

import functools
import html
import io
import lzma
import re
import sys
import zipfile
from pathlib import Path

from mini_kv.course.grading import solution_leaks as of_code
from mini_kv_book.places import ROOT

_READ = {".html", ".json", ".js", ".txt", ".md", ".py", ".toml", ".zip", ".xz", ".whl"}


def shown(name: str, content: bytes) -> str:
    """Return the text of a built file without tags, comments and white space."""
    if name.endswith(".xz"):
        return shown(name.removesuffix(".xz"), lzma.decompress(content))
    if name.endswith((".zip", ".whl")):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return "".join(shown(member, archive.read(member)) for member in archive.namelist())
    text = content.decode("utf-8", errors="ignore")
    if name.endswith((".html", ".json", ".js")):
        text = html.unescape(re.sub(r"<[^>]*>", "", text.replace("\\n", "\n").replace('\\"', '"')))
    return of_code.bare(text)


@functools.cache
def secrets() -> of_code.Secrets:
    """Return what no page may have."""
    return of_code.secrets(ROOT)


def leaks(site: Path) -> list[str]:
    """Return a sentence for each function of a solution that the site gives away, in whole or in part."""
    found = []
    for path in sorted(path for path in site.rglob("*") if path.suffix in _READ):
        text = shown(path.name, path.read_bytes())
        found += [f"{path}: {name}" for name in secrets().found_in(text)]
    return found


def main() -> int:
    """Check the site on the command line and return the exit status."""
    found = leaks(Path(sys.argv[1]))
    for line in found:
        print(line, file=sys.stderr)
    print(f"{len(found)} solutions in {sys.argv[1]}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
