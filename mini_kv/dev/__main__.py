"""`python -m mini_kv.dev`: measure the bookkeeping, and compare it with the installed peers."""

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from mini_kv.dev import bookkeeping
from mini_kv.dev.bookkeeping import QUICK, Row, Sizes
from mini_kv.dev.measure import Run, take_turns
from mini_kv.dev.peers import VLLM, MiniKV, NanoVLLM, NoSuchWorkError, Peer, PeerError
from mini_kv.dev.report import Result, as_json, header_lines, make_header, results, table_lines
from mini_kv.dev.scaling import MOST_REPEATS, scaling_rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status: 0 measured, 2 unusable arguments."""
    args = parse(argv)
    sizes = QUICK if args.quick else Sizes()
    rows = all_rows(sizes, args.seed)
    unknown = set(args.rows or ()) - {row.name for row in rows}
    if unknown:
        print(f"unknown rows: {', '.join(sorted(unknown))}; there are: {names(rows)}", file=sys.stderr)
        return 2
    repeats = args.repeats or sizes.repeats
    # With --json -, standard output is for the machine, so the table for the reader goes to standard error.
    out: TextIO = sys.stderr if args.json == "-" else sys.stdout
    tables: list[tuple[Row, list[Result]]] = []
    try:
        peers = find_peers(args.peer, args.nano_vllm)
        header = make_header(peers, args.seed, repeats)
        print("\n".join(header_lines(header)), file=out)
        for row in rows:
            if args.rows and row.name not in args.rows:
                continue
            runs, left_out = prepare(row, peers)
            found = results(row, take_turns(runs, repeats))
            tables.append((row, found))
            print("", *table_lines(row, found, list(runs)), *left_out, sep="\n", file=out, flush=True)
    except PeerError as error:
        print(f"mini_kv.dev: {error}", file=sys.stderr)
        return 2
    if args.json:
        text = json.dumps(as_json(header, tables), indent=2)
        if args.json == "-":
            print(text)
        else:
            Path(args.json).write_text(text + "\n", encoding="utf-8")
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.dev", description=__doc__)
    parser.add_argument("--rows", nargs="+", metavar="ROW", help=f"only these: {names(all_rows(QUICK, 0))}")
    parser.add_argument("--peer", choices=["auto", "vllm", "none"], default="auto", help="auto: vLLM if installed")
    parser.add_argument("--nano-vllm", type=Path, metavar="PATH", help="also compare with this checkout of nano-vllm")
    parser.add_argument(
        "--repeats", type=int, choices=range(1, MOST_REPEATS + 1), metavar="N", help=f"runs per row, to {MOST_REPEATS}"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the prompts (default: 0)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows the table, its figures mean nothing")
    parser.add_argument("--json", metavar="FILE", help="also write the report as JSON; - is standard output")
    return parser.parse_args(argv)


def names(rows: Sequence[Row]) -> str:
    """Return the rows' names, for a message."""
    return ", ".join(row.name for row in rows)


def find_peers(peer: str, nano_vllm: Path | None) -> list[Peer]:
    """Return our engine and the requested peers. Raises `PeerError` if one is not installed."""
    peers: list[Peer] = [MiniKV()]
    if peer == "vllm" or (peer == "auto" and importlib.util.find_spec("vllm") is not None):
        peers.append(VLLM())
    if nano_vllm is not None:
        peers.append(NanoVLLM(nano_vllm))
    return peers


def prepare(row: Row, peers: Sequence[Peer]) -> tuple[dict[str, Run], list[str]]:
    """Return the runners of the peers that can do the row's work, and a line about each other peer."""
    runs, left_out = {}, []
    for peer in peers:
        try:
            runs[peer.name] = row.prepare(peer)
        except NoSuchWorkError as reason:
            left_out.append(f"without {peer.name}: {reason}")
    return runs, left_out


def all_rows(sizes: Sizes, seed: int) -> list[Row]:
    """Return every row, in the order of the table."""
    return [
        bookkeeping.churn(sizes, seed),
        bookkeeping.hashing(sizes, seed),
        bookkeeping.naming(sizes, seed),
        *bookkeeping.admissions(sizes, seed),
        bookkeeping.decode(sizes, seed),
        bookkeeping.scheduling(sizes, seed),
        *scaling_rows(sizes, seed),
    ]


if __name__ == "__main__":
    sys.exit(main())
