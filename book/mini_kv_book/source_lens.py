"""The tables of links into vLLM's code, for kinds of events and for causes of lost hits.

<!-- table source-lens events -->
<!-- table source-lens causes -->
"""

from collections.abc import Mapping

from mini_kv.story.vllm_source import CAUSES, EVENTS, Place


def as_markdown(which: str) -> str:
    """Return a table. Raises `ValueError` unless it is `events` or `causes`."""
    tables: dict[str, Mapping[str, Place]] = {
        "events": {str(kind): place for kind, place in EVENTS.items()},
        "causes": CAUSES,
    }
    if which not in tables:
        raise ValueError(f"there are the tables `source-lens events` and `source-lens causes`, and no {which!r}")
    rows = [
        f"| {name} | [`{place.symbol}`]({place.url}) | {place.sentence}{_here(place)} |"
        for name, place in tables[which].items()
    ]
    return "\n".join([f"| {which[:-1]} | in vLLM 0.33 | what happens there |", "|---|---|---|", *rows])


def _here(place: Place) -> str:
    """Return the counterpart, if it has another name than in vLLM."""
    return "" if place.here.endswith(f".{place.symbol}") else f" Here: `{place.here}`."
