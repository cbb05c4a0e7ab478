"""Time to the first token of a prompt with a known prefix, which is computed again or reloaded from a tier.

    python -m mini_kv.dev.tiers [--server redis://127.0.0.1:6379/0] [--json FILE]

The pool here is a CPU's memory, and so is the first tier. A card's copies are predicted, by
`mini_kv.tiers.reload_cost`.
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mini_kv.core.errors import ConfigError, KVCacheError
from mini_kv.engine.checkpoint import load_model, tiny_folder
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.sampling import SamplingParams
from mini_kv.engine.tiered_engine import TieredEngine
from mini_kv.tiers.reload_cost import ReloadCost, line_through
from mini_kv.tiers.tier_config import TierConfig, open_tiers
from mini_kv.tiers.tiered_cache import TieredCache

LENGTHS = (16, 32, 64, 128, 256, 480)
"""Tokens of the shared prefix."""
_ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0)


@dataclass(frozen=True, slots=True)
class Bench:
    """Number of repeats, and the tiers."""

    repeats: int
    folder: Path
    server: str | None

    def names(self) -> list[str]:
        """Return the ways to restore a prefix."""
        return ["computed", "memory", "disk", *(["server"] if self.server else [])]

    def seconds(self, name: str, length: int, run: int) -> float:
        """Return the time to the first token of one prompt."""
        first = self._engine("writer", name)
        prompt = [(run * 37 + length * 11 + position * 7) % 900 + 1 for position in range(length)]
        last = [*prompt, 901 + run % 100]
        with first:
            if name != "computed":
                _first_token(first, [*prompt, 1000])
                _push_out(first)
                if name == "disk":
                    _to_disk(first.tiers)
                first.tiers.flush()
            if name != "server":
                return _timed(first, last, length if name != "computed" else 0)
        with self._engine("reader", name) as second:
            return _timed(second, last, length)

    def _engine(self, role: str, name: str) -> TieredEngine:
        model, tokenizer = load_model(tiny_folder())
        folder = Path(tempfile.mkdtemp(dir=self.folder)) if name == "disk" else None
        server = self.server if name == "server" else None
        tiers = open_tiers(TierConfig(disk_folder=folder, server=server, seconds_to_wait=5.0))
        engine = TieredEngine(model, tokenizer, EngineConfig(num_blocks=34), tiers=tiers, seconds_to_wait=5.0)
        _first_token(engine, [1020, 1021])  # whatever happens at a first time only, happens now
        return engine


def _first_token(engine: TieredEngine, prompt: list[int]) -> None:
    engine.generate([prompt], _ONE_TOKEN)


def _timed(engine: TieredEngine, prompt: list[int], num_hit: int) -> float:
    """Return the seconds of a prompt's first token. Raise if its hit is not the expected one."""
    start = time.perf_counter()
    (output,) = engine.generate([prompt], _ONE_TOKEN)
    seconds = time.perf_counter() - start
    if output.num_cached_tokens != num_hit:
        raise RuntimeError(f"{output.num_cached_tokens} tokens were hit, and not {num_hit}")
    return seconds


def _push_out(engine: TieredEngine) -> None:
    """Use all blocks of the pool for another prompt, so that their content moves to the tiers."""
    _first_token(engine, [(position * 13) % 700 + 5 for position in range(510)])


def _to_disk(tiers: TieredCache) -> None:
    """Evict everything from memory, by requesting its whole capacity."""
    size = tiers.memory.capacity_bytes
    for key, envelope in tiers.memory.store(b"all of it", bytes(size)) or ():
        assert tiers.disk is not None
        tiers.disk.store(key, envelope)
    tiers.memory.discard(b"all of it")


def measure(bench: Bench) -> dict[str, dict[int, float]]:
    """Return the median seconds by way and length. The ways take turns, so that a slow moment affects all of them."""
    found: dict[str, dict[int, list[float]]] = {name: {length: [] for length in LENGTHS} for name in bench.names()}
    for run in range(bench.repeats):
        for length in LENGTHS:
            for name in bench.names():
                found[name][length].append(bench.seconds(name, length, run))
    return {
        name: {length: statistics.median(values) for length, values in by_length.items()}
        for name, by_length in found.items()
    }


def costs(seconds: dict[str, dict[int, float]], bytes_per_token: int) -> dict[str, ReloadCost]:
    """Return each tier's costs, from lines fitted to the measurements. Raises `ConfigError` for impossible costs."""
    base, per_token = line_through([(length, value) for length, value in seconds["computed"].items()])
    if per_token <= 0:
        raise ConfigError("longer prompts took no longer: this machine is too busy to be measured; try more --repeats")
    found = {}
    for name in seconds.keys() - {"computed"}:
        at_once, per_hit = line_through([(length, value) for length, value in seconds[name].items()])
        found[name] = ReloadCost(per_token, max(per_hit, 0.0) / bytes_per_token, max(at_once - base, 0.0))
    return found


def measured_crossover(seconds: dict[str, dict[int, float]], name: str) -> int | None:
    """Return the shortest measured length from which on reloading was always faster."""
    quicker = [length for length in LENGTHS if seconds[name][length] < seconds["computed"][length]]
    return next((length for length in LENGTHS if all(other in quicker for other in LENGTHS if other >= length)), None)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status: 0 measured, 2 unusable arguments."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.dev.tiers", description=__doc__)
    parser.add_argument("--server", metavar="ADDRESS", help="address of a Valkey or Redis server: redis://host:port/0")
    parser.add_argument("--repeats", type=int, default=9, metavar="N", help="runs of each (default: 9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")
    args = parser.parse_args(argv)
    if args.repeats < 1:
        print(f"--repeats is {args.repeats}, it must be at least 1", file=sys.stderr)
        return 2
    try:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(args.repeats, Path(folder), args.server)
            seconds = measure(bench)
            bytes_per_token = _bytes_per_token()
            prices = costs(seconds, bytes_per_token)
    except (KVCacheError, RuntimeError) as error:
        print(f"mini_kv.dev.tiers: {error}", file=sys.stderr)
        return 2
    print("milliseconds to the first token, by tokens of the known prefix; the pool is this process's memory")
    print(f"{'':>9}" + "".join(f"{length:>8}" for length in LENGTHS) + "   faster from: measured, predicted")
    for name, by_length in seconds.items():
        cells = "".join(f"{1000 * by_length[length]:8.2f}" for length in LENGTHS)
        tail = ""
        if name in prices:
            tail = f"   {measured_crossover(seconds, name)}, {prices[name].crossover_tokens(bytes_per_token)}"
        print(f"{name:>9}{cells}{tail}")
    if args.json is not None:
        record = {
            "machine": f"{platform.machine()}, CPU",
            "repeats": args.repeats,
            "bytes_per_token": bytes_per_token,
            "milliseconds": {
                name: {str(length): round(1000 * value, 3) for length, value in by_length.items()}
                for name, by_length in seconds.items()
            },
            "crossover": {
                name: {
                    "measured": measured_crossover(seconds, name),
                    "predicted": prices[name].crossover_tokens(bytes_per_token),
                }
                for name in seconds
                if name in prices
            },
        }
        args.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0


def _bytes_per_token() -> int:
    """Return the bytes that a token of the small model takes in all layers."""
    model, _ = load_model(tiny_folder())
    return sum(spec.page_size_bytes // spec.block_size for spec in model.get_kv_cache_spec(16).values())


if __name__ == "__main__":
    sys.exit(main())
