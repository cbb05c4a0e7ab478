"""Draws mutations and plays them against the tests.

python -m mini_kv.tests.mutations draw                  writes list.json: 200 of them, over all rooms
python -m mini_kv.tests.mutations play                  plays those that were caught, in caught.json: they must be still
python -m mini_kv.tests.mutations play --which new      those not in caught.json, which it completes; may be interrupted
python -m mini_kv.tests.mutations play --which survived --slow --seconds 300
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from mini_kv.tests.mutations.draw import Mutation, draw, tracked
from mini_kv.tests.mutations.play import BROWSER, FAST, SLOW, Clone

LIST, CAUGHT = (Path(__file__).with_name(name) for name in ("list.json", "caught.json"))
ROOT = Path(__file__).parents[3]


def write_list(count: int, seed: int) -> None:
    """Draw anew: a mutation a line."""
    mutations = draw(tracked(ROOT, "*.py", "*.js", "*.mjs"), count, seed)
    lines = [json.dumps(mutation._asdict(), ensure_ascii=False) for mutation in mutations]
    LIST.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def chosen(mutations: list[Mutation], caught: dict[str, str | None], which: str, is_js: bool) -> list[Mutation]:
    """Return the mutations to play: those that were caught, those that survived, or those that were not played."""
    in_language = [mutation for mutation in mutations if is_js is not mutation.file.endswith(".py")]
    if which == "new":
        return [mutation for mutation in in_language if mutation.id not in caught]
    played = [mutation for mutation in in_language if mutation.id in caught]
    return [mutation for mutation in played if (caught[mutation.id] is None) is (which == "survived")]


def play(options: Any) -> int:
    """Play mutations and write down what catches each; return 1 if one that was caught is not caught now."""
    mutations = [Mutation(**entry) for entry in json.loads(LIST.read_text(encoding="utf-8"))]
    caught = json.loads(CAUGHT.read_text(encoding="utf-8")) if CAUGHT.exists() else {}
    mark = BROWSER if options.browser else SLOW if options.slow else FAST
    num_lost = 0
    with tempfile.TemporaryDirectory() as folder:
        clone = Clone(ROOT, Path(folder))
        for mutation in chosen(mutations, caught, options.which, options.browser):
            if not clone.change(mutation):
                print(f"{mutation.id}: gone from {mutation.file}: {mutation.old.strip()}", flush=True)
                continue
            before = caught.get(mutation.id)
            now = clone.play(mutation, before, mark, options.seconds)
            if before is not None and now is None:
                num_lost += 1
                print(f"{mutation.id}: NOT CAUGHT ANY MORE, was by {before}", flush=True)
                continue
            print(f"{mutation.id}: {now or 'survived'}", flush=True)
            caught[mutation.id] = now
            CAUGHT.write_text(json.dumps(caught, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{num_lost} caught before and not now" if num_lost else "all that were caught before are caught")
    return 1 if num_lost else 0


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.tests.mutations")
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="write list.json anew")
    drawing.add_argument("--count", type=int, default=200)
    drawing.add_argument("--seed", type=int, default=68)
    playing = commands.add_parser(
        "play", help="run the tests that concern each mutation, on a clone of what is committed"
    )
    playing.add_argument("--which", choices=("caught", "new", "survived"), default="caught")
    playing.add_argument("--slow", action="store_true", help="also the tests marked slow")
    playing.add_argument("--browser", action="store_true", help="the scripts' mutations, in Chromium")
    playing.add_argument("--seconds", type=float, default=60, help="of CPU for each mutation, after which it survives")
    options = parser.parse_args()
    if options.command == "play":
        return play(options)
    write_list(options.count, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
