"""One more token of a text: without a cache, with a contiguous one, with a paged one.

Without a cache each token costs the whole text again, so a text costs the square of its length. With a cache it costs
the token itself and its attention. Attention grows with the length, but slowly: reading is cheaper than computing.

All three must generate the same tokens. In 16 bits they may differ, because of sums in another order.
"""

from statistics import median
from typing import Any

from mini_kv.dev.generate.setup import Setup, greedy, table
from mini_kv.dev.measure import Run, take_turns
from mini_kv.engine.contiguous import ContiguousCache, NoCache, generate_alone

TITLE = "ms a new token, one text, by the tokens before it"


def run(setup: Setup) -> list[dict[str, Any]]:
    """Return one row per length."""
    return [_row(setup, length) for length in setup.sizes.lengths]


def _row(setup: Setup, length: int) -> dict[str, Any]:
    text = setup.prompts(1, length)[0]
    said: dict[str, list[int]] = {}
    runs = {"contiguous": _contiguous(setup, text, said), "paged": _paged(setup, text, said)}
    if length <= setup.sizes.longest_without_cache:
        runs["no cache"] = _no_cache(setup, text, said)
    values = take_turns(runs, setup.repeats)
    row: dict[str, Any] = {"tokens": length}
    row |= {f"{name} ms": median(found["ms"]) for name, found in values.items()}
    expected = said["contiguous"]
    row["same tokens"] = all(tokens == expected[: len(tokens)] for tokens in said.values())
    return row


def _no_cache(setup: Setup, text: list[int], said: dict[str, list[int]]) -> Run:
    def once() -> dict[str, float]:
        begin = setup.clock()
        said["no cache"] = generate_alone(setup.model, text, 1, NoCache())
        return {"ms": 1e3 * (setup.clock() - begin)}

    return once


def _contiguous(setup: Setup, text: list[int], said: dict[str, list[int]]) -> Run:
    steps = setup.sizes.steps
    cache = ContiguousCache(setup.model, len(text) + steps)
    first = generate_alone(setup.model, text, 1, cache)

    def once() -> dict[str, float]:
        cache.num_tokens = len(text)  # what stands behind is written again
        begin = setup.clock()
        tokens = generate_alone(setup.model, text + first, steps, cache)
        seconds = setup.clock() - begin
        said["contiguous"] = first + tokens
        return {"ms": 1e3 * seconds / steps}

    return once


def _paged(setup: Setup, text: list[int], said: dict[str, list[int]]) -> Run:
    """All of the engine: scheduler, block tables, sampling. The prompt is found in the prefix cache each time."""
    steps = setup.sizes.steps
    engine = setup.engine(2, len(text) + steps + 1)

    def once() -> dict[str, float]:
        engine.add_request("text", text, greedy(steps + 1))
        tokens: list[int] = []
        while not tokens:
            tokens += [token for delta in engine.step() for token in delta.new_token_ids]
        begin = setup.clock()
        for _ in range(steps):
            tokens += engine.step()[0].new_token_ids
        seconds = setup.clock() - begin
        said["paged"] = tokens
        return {"ms": 1e3 * seconds / steps}

    return once


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return the rows as text."""
    cells = []
    for row in rows:
        without, paged = row.get("no cache ms"), row["paged ms"]
        ratio = None if without is None else f"{without / paged:.1f}x"
        said = "yes" if row["same tokens"] else "no"
        cells.append([str(row["tokens"]), without, row["contiguous ms"], paged, ratio, said])
    return table(["tokens", "no cache", "contiguous", "paged", "no cache / paged", "same tokens"], cells)
