"""The fence kv-plan: a model, a GPU and a shared prefix; the page answers whether they fit and what is found.

Each line of the fence is a case: fields as in an address, a bar, and words. The page opens on the first, which is
computed as the book is built; the others are buttons. Without packed Python, or without scripts, the reader sees the
first case's sentences and the commands that say them.
"""

import json
from html import escape
from operator import itemgetter
from typing import Any
from urllib.parse import parse_qsl

from mini_kv.core.kv_cache_planning import CACHE_DTYPES
from mini_kv.tools.planning.cost import CARDS
from mini_kv.tools.planning.models import load_model, model_names
from mini_kv.tools.planning.states import GDN_PREFILL_BACKENDS
from mini_kv_book.assets import plan_page
from mini_kv_book.fences import code
from mini_kv_book.fences import fence as as_fence
from mini_kv_book.lab import inert, megabytes
from mini_kv_book.runs import FenceError


@as_fence
def fence(body: str, _md: Any) -> str:
    """Show the answer to the first case, with fields for other ones."""
    return element([case_of(line) for line in body.strip().splitlines()], megabytes())


def case_of(line: str) -> tuple[dict[str, str], str]:
    """Return the fields and the label of a line."""
    fields, bar, words = line.partition(" | ")
    if not bar:
        raise FenceError(f"{line!r} has no words: write FIELDS | WORDS")
    return dict(parse_qsl(fields, strict_parsing=True)), words


def element(cases: list[tuple[dict[str, str], str]], size: int | None) -> str:
    """Return `<kv-plan>`. `size`: MB that a first question loads. Without it the page cannot answer others."""
    first = json.loads(plan_page.answer(json.dumps(cases[0][0])))
    for verb in ("plan", "why"):
        if "error" in first[verb]:
            raise FenceError(f"{first[verb]['command']}: {first[verb]['error']}")
    about = {
        "cases": cases,
        "first": first,
        "megabytes": size,
        "models": sorted(([name, load_model(name).title] for name in model_names()), key=itemgetter(1)),
        "cards": [[name, f"{card.name}, {card.memory / 1e9:g} GB"] for name, card in CARDS.items()],
        "dtypes": list(CACHE_DTYPES),
        "backends": list(GDN_PREFILL_BACKENDS),
    }
    data = f'<script type="application/json">{inert(about)}</script>' if size is not None else ""
    plan, why = first["plan"], first["why"]
    said = " ".join([plan["fits"], *why["said"], why["verdict"]])
    commands = code("\n".join([plan["command"], why["command"]]), "text")
    return f"<div><kv-plan{' python' if size is not None else ''}>{data}<p>{escape(said)}</p>{commands}</kv-plan></div>"
