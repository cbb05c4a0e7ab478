"""Draws mutations and plays them against the tests.

python -m mini_kv.tests.mutations draw                  writes list.json: 200 of them, over all rooms
python -m mini_kv.tests.mutations play                  plays those that were caught, in caught.json: they must be still
python -m mini_kv.tests.mutations play --which new      those not in caught.json, which it completes; may be interrupted
python -m mini_kv.tests.mutations play --which survived --slow --seconds 300 core tiers
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from mini_kv.tests.mutations.draw import Mutation, draw, room_of, tracked
from mini_kv.tests.mutations.play import Clone

ROOT = Path(__file__).parents[3]
HOME = "mini_kv/tests/mutations"


def play(root: Path, options: argparse.Namespace) -> int:
    """Play mutations and write down what catches each; return 1 if one that was caught is not caught now."""
    mutations = [Mutation(**entry) for entry in json.loads((root / HOME / "list.json").read_text(encoding="utf-8"))]
    record = root / HOME / "caught.json"
    caught: dict[str, str | None] = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    left_out = [
        "audit",
        "prose",
        "notebooks",
        *["browser", "book"] * (not options.browser),
        *["slow"] * (not options.slow),
    ]
    mark = f"not ({' or '.join(left_out)})"
    lost = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        clone = Clone(root, Path(folder), mark, options.seconds)
        for mutation in mutations:
            before = caught.get(mutation.id)
            state = "new" if mutation.id not in caught else "survived" if before is None else "caught"
            is_asked = not options.rooms or room_of(mutation.file) in options.rooms
            if state != options.which or not is_asked or mutation.file.endswith(".py") is options.browser:
                continue
            if not clone.change(mutation):
                print(f"{mutation.id}: gone", flush=True)
                continue
            now = clone.play(mutation, before)
            lost += [mutation.id] * (now is None and before is not None)
            print(f"{mutation.id}: {now or (f'NOT CAUGHT, before by {before}' if before else 'survived')}", flush=True)
            caught[mutation.id] = now or before
            record.write_text(json.dumps(caught, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    print("caught before and not now:", *lost or ["none"])
    return 1 if lost else 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.tests.mutations")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("draw", help="write list.json anew")
    playing = commands.add_parser(
        "play", help="run the tests that concern each mutation, on a clone of what is committed"
    )
    playing.add_argument("rooms", nargs="*", help="of these rooms; otherwise of all")
    playing.add_argument("--which", choices=("caught", "new", "survived"), default="caught")
    playing.add_argument("--slow", action="store_true", help="also the tests marked slow")
    playing.add_argument("--browser", action="store_true", help="the mutations of scripts, in Chromium")
    playing.add_argument("--seconds", type=int, default=60, help="of CPU for each mutation, after which it survives")
    return parser


if __name__ == "__main__":
    options = make_parser().parse_args()
    if options.command == "play":
        sys.exit(play(ROOT, options))
    lines = [json.dumps(mutation._asdict(), ensure_ascii=False) for mutation in draw(tracked(ROOT), 200, 68)]
    (ROOT / HOME / "list.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
