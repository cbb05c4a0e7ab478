"""`python -m mini_kv.course.finale.inside_vllm`: the acts inside vLLM. Runs in vLLM's Python."""

import argparse
import sys
from pathlib import Path

from mini_kv.course.finale.finale import Finale
from mini_kv.course.finale.inside_vllm import VERSION, recorded
from mini_kv.course.finale.inside_vllm.acts import vllm_scenes
from mini_kv.course.finale.inside_vllm.vllm_hour import VllmHour
from mini_kv.course.finale.steps import Act
from mini_kv.course.labkit.lab import all_labs, find_checkout


def main() -> int:
    """Play the acts, or record a run of vLLM without any part from the labs. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.course.finale.inside_vllm", description=__doc__)
    parser.add_argument("--labs", default="starter", help="as of mini-kv finale")
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write vLLM's own run, and play nothing")
    args = parser.parse_args()
    try:
        from vllm import __version__ as version  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        print(f"mini-kv finale: {sys.executable} has no vLLM that can be imported: {error}", file=sys.stderr)
        return 2
    if args.record is not None:
        act = Act(VllmHour(recorded.requests_of(args.seed), "parts")).played()
        recorded.write(act, version, args.seed, args.record)
        return 0
    print(f"vLLM {version}{'' if version == VERSION else f' (these acts are made for {VERSION})'}\n")
    finale = Finale(args.labs, all_labs(find_checkout(Path.cwd())), vllm_scenes(args.seed))
    for line in finale.lines():
        print(line, flush=True)
    return 0 if finale.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
