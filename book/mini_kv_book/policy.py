"""A hook of MkDocs: every page declares its scripts, and the browser refuses all others.

A static site cannot send headers, so the Content-Security-Policy stands in the page. The theme has three scripts inside
its pages: they are allowed one by one, by their hashes. `mkdocs serve` puts in a script of its own that reloads the
page, so what is served while one writes has no policy.
"""

import base64
import hashlib
import re
from typing import Any

CHARSET = '<meta charset="utf-8">'
INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)

POLICY = (
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


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Return the page with its policy."""
    return with_policy(output)


def on_post_template(output_content: str, *, template_name: str, config: Any) -> str:
    """Return the page for wrong addresses with its policy. Other templates are not pages."""
    return with_policy(output_content) if template_name == "404.html" else output_content


def with_policy(html: str) -> str:
    """Return a page that begins with its policy: files of this site, and the scripts that it contains now."""
    if "serve" in _command:
        return html
    hashes = "".join(f" 'sha256-{fingerprint(script)}'" for script in INLINE.findall(html))
    content = "; ".join(POLICY).format(hashes=hashes)
    return html.replace(CHARSET, f'{CHARSET}\n<meta http-equiv="Content-Security-Policy" content="{content}">', 1)


def fingerprint(script: str) -> str:
    """Return the hash of a script in a policy's form."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
