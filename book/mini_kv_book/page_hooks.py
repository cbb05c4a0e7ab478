"""A hook of MkDocs for every page: its description, no byte that it does not need, and a policy for scripts.

A static site cannot send headers, so the Content-Security-Policy stands in the page: a page declares its scripts, and
the browser refuses all others. The theme has three scripts inside its pages. They are allowed one by one, by their
hashes. `mkdocs serve` puts in a script of its own that reloads the page, so what is served while one writes has no
policy.
"""

import base64
import hashlib
import html
import re
from pathlib import Path
from typing import Any

_PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)
_NO_WORDS = re.compile(r".{,40}$|On your own machine")  # a row of badges; how a lab is solved
_TAG = re.compile(r"<[^>]+>")
_MAIN = '<div class="md-content"'
_PLAIN = re.compile(r'<span class="[nw]">([^<]*)</span>')  # names and blanks of listings, in the text's own colour
_SYMBOLS = re.compile(r'\s*<link rel="stylesheet" href="[^"]*_mkdocstrings\.css">')
_RULE = re.compile(r"([^{}@;]+)\{([^{}]*)\}")
_COMMA = re.compile(r",(?![^(\[]*[)\]])")  # between two selectors, not inside the brackets of one
_WORD = re.compile(r"[\w-]+")
_CLASS = re.compile(r"\.([\w-]+)")
_COLOUR = re.compile(r"\[data-md-color-\w+=([\w-]+)\]")
_CHARSET = '<meta charset="utf-8">'
_INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)

_POLICY = (
    "default-src 'self'",
    "script-src 'self' 'wasm-unsafe-eval'{hashes}",  # Python in a page is WebAssembly
    "style-src 'self' 'unsafe-inline'",  # drawings place their parts by style
    "img-src 'self' data:",  # the theme's icons
    "object-src 'none'",
    "base-uri 'none'",
    "form-action 'self'",
)

_command: set[str] = set()


def on_startup(*, command: str, dirty: bool) -> None:
    """Note the command of MkDocs."""
    _command.add(command)


def on_page_content(content: str, *, page: Any, config: Any, files: Any) -> str:
    """Use a page's first words as its description, unless it has its own. The page itself is unchanged."""
    if words := first_words(content):
        page.meta.setdefault("description", html.escape(words))  # the theme puts it between quotation marks as it is
    return content


def first_words(content: str, at_most: int = 200) -> str:
    """Return the text of the first paragraph with words, cut between two of them, or an empty string.

    >>> first_words("<p>CPU-OK</p><p>A <em>block</em> &amp; its hash, until a request needs it</p>", 20)
    'A block & its…'
    """
    texts = [" ".join(html.unescape(_TAG.sub("", found)).split()) for found in _PARAGRAPH.findall(content)]
    text = next((text for text in texts if not _NO_WORDS.match(text)), "")
    return text if len(text) <= at_most else text[: at_most - 1].rsplit(" ", 1)[0] + "…"


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Return the page in fewer bytes, with its policy for the scripts that are left."""
    return with_policy(_without_indentation(output, is_api=page.file.src_uri.startswith("api/")))


def _without_indentation(output: str, is_api: bool) -> str:
    """Return the page without the template's indentation and, outside the engine's pages, without the style of symbols.

    Listings keep every character, but lose the marks without a colour.
    """
    if _MAIN not in output:
        return output
    head, text = output.split(_MAIN, 1)
    if not is_api:
        head = _SYMBOLS.sub("", head)
    return re.sub(r"\n\s+", "\n", head) + _MAIN + _PLAIN.sub(r"\1", text)


def on_post_build(*, config: Any) -> None:
    """Remove the theme's styles that apply to no page, a third of their bytes. Shorten the book's."""
    site = Path(config.site_dir)
    words: set[str] = set()
    for path in (*site.rglob("*.html"), *site.rglob("*.js")):
        words.update(_WORD.findall(path.read_text(encoding="utf-8")))
    for path in site.glob("assets/stylesheets/*.css"):
        path.write_text(without_unused(path.read_text(encoding="utf-8"), words), encoding="utf-8", newline="\n")
    path = site / "assets" / "book.css"
    path.write_text(short(path.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")


def without_unused(css: str, words: set[str]) -> str:
    """Return a style sheet without the selectors of a class, or of a theme's colour, that is not one of these words.

    The words are those of all pages and scripts of the site, so classes set by a script are among them. Selectors for
    pages from right to left are removed too: the book has none.
    """

    def used(selector: str) -> bool:
        return "[dir=rtl]" not in selector and words.issuperset(
            (*_CLASS.findall(re.sub(r":not\([^)]*\)", "", selector)), *_COLOUR.findall(selector))
        )

    def rule(found: re.Match[str]) -> str:
        selectors = ",".join(filter(used, _COMMA.split(found[1])))
        return f"{selectors}{{{found[2]}}}" if selectors else ""

    return re.sub(r"@(?:media|supports)[^{}]*\{\}", "", _RULE.sub(rule, css))


def short(css: str) -> str:
    """Return a style sheet without comments, and without blanks around the signs between its parts.

    >>> short("/* the page */ .a, .b { color: red; } ")
    '.a,.b{color: red;}'
    """
    css = re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL))
    return re.sub(r" ?([{};,]) ?", r"\1", css).strip()


def on_post_template(output_content: str, *, template_name: str, config: Any) -> str:
    """Return the page for wrong addresses with its policy. Other templates are not pages."""
    return with_policy(output_content) if template_name == "404.html" else output_content


def with_policy(page: str) -> str:
    """Return a page that begins with its policy: files of this site, and the scripts that it contains now."""
    if "serve" in _command:
        return page
    hashes = "".join(f" 'sha256-{fingerprint(script)}'" for script in _INLINE.findall(page))
    content = "; ".join(_POLICY).format(hashes=hashes)
    return page.replace(_CHARSET, f'{_CHARSET}\n<meta http-equiv="Content-Security-Policy" content="{content}">', 1)


def fingerprint(script: str) -> str:
    """Return the hash of a script in a policy's form."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
