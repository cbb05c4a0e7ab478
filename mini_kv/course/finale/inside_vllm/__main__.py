"""`python -m mini_kv.course.finale.inside_vllm`: the checks inside vLLM. Runs in vLLM's Python."""

import argparse
import sys
from pathlib import Path

from mini_kv.course.finale.inside_vllm import VERSION, recorded
from mini_kv.course.finale.inside_vllm.vllm_checks import vllm_checks
from mini_kv.course.finale.inside_vllm.vllm_workload import VllmWorkload
from mini_kv.course.finale.integration import Finale
from mini_kv.course.finale.steps import Run
from mini_kv.course.labkit.lab import all_labs, find_checkout


def main() -> int:
    """Run the checks, or record a run of vLLM without any part from the labs. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.course.finale.inside_vllm", description=__doc__)
    parser.add_argument("--labs", default="starter", help="as of mini-kv finale")
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    parser.add_argument("--verbose", action="store_true", help="as of mini-kv finale")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write vLLM's own run, and play nothing")
    args = parser.parse_args()
    try:
        from vllm import __version__ as version  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        print(f"mini-kv finale: {sys.executable} has no vLLM that can be imported: {error}", file=sys.stderr)
        return 2
    if args.record is not None:
        run = Run(VllmWorkload(recorded.requests_of(args.seed), "parts")).complete()
        recorded.write(run, version, args.seed, args.record)
        return 0
    print(f"vLLM {version}{'' if version == VERSION else f' (these acts are made for {VERSION})'}\n")
    finale = Finale(args.labs, all_labs(find_checkout(Path.cwd())), vllm_checks(args.seed))
    for line in finale.lines(args.verbose):
        print(line, flush=True)
    return 0 if finale.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
