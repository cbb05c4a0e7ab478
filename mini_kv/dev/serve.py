"""`python -m mini_kv.dev.serve`: many clients on one endpoint, also faulty ones, compared with the same work offline.

Clients send requests over loopback sockets, one after the other. Most read their answer, some slowly. Some disconnect
early, some send garbage, some send too much. Every complete answer is compared with the engine's own answer without a
server. At the end the pool must be as empty as at the beginning.
"""

import argparse
import asyncio
import json
import random
import re
import resource
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mini_kv.engine.llm import LLM
from mini_kv.engine.sampling import SamplingParams

KINDS = {"whole": 30, "stream": 40, "slow": 8, "leaves": 12, "garbage": 6, "oversized": 4}
"""The kinds of clients' behaviour, in percent."""
SYSTEM = "You are a careful tutor. Answer in one short sentence, and name the block that you mean. "
QUESTIONS = ("What is a block?", "Who holds it?", "When is it free?", "What is a prefix?", "Why not the last one?")


@dataclass
class Job:
    """One request, and its right answer."""

    prompt: str
    max_tokens: int
    seed: int
    temperature: float
    text: str = ""

    def body(self, stream: bool) -> bytes:
        """Return the request as JSON."""
        asked = {"prompt": self.prompt, "max_tokens": self.max_tokens, "seed": self.seed, "stream": stream}
        return json.dumps({**asked, "temperature": self.temperature}).encode()


@dataclass
class Seen:
    """The results of all clients."""

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    num_wrong: int = 0
    to_first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


def _make_jobs(num_jobs: int, seed: int = 0) -> list[Job]:
    """Return jobs with their right answers, from the engine without a server, in a pool that evicts."""
    rng = random.Random(seed)
    jobs = [
        Job(SYSTEM + rng.choice(QUESTIONS) + f" ({number % 40})", rng.randint(4, 48), number, rng.choice((0.0, 0.8)))
        for number in range(num_jobs)
    ]
    params = [SamplingParams(max_tokens=job.max_tokens, seed=job.seed, temperature=job.temperature) for job in jobs]
    for job, output in zip(jobs, LLM(block_size=8).generate([job.prompt for job in jobs], params), strict=True):
        job.text = output.outputs[0].text
    return jobs


class Client:
    """Sends requests until the time is over."""

    def __init__(self, port: int, jobs: Sequence[Job], seen: Seen, seed: int) -> None:
        self._port, self._jobs, self._seen, self._rng = port, jobs, seen, random.Random(seed)

    async def run(self, until: float) -> None:
        """Send one request after the other."""
        while time.perf_counter() < until:
            kind = self._rng.choices(list(KINDS), list(KINDS.values()))[0]
            job = self._rng.choice(self._jobs)
            body = {"garbage": self._rng.randbytes(200), "oversized": b" " * (2 << 20)}.get(kind)
            self._seen.kinds[kind] += 1
            try:
                await self._ask(kind, job, job.body(kind != "whole") if body is None else body)
            except OSError as error:
                if kind != "oversized":  # of which the server need not have read all when it answered
                    self._seen.statuses[type(error).__name__] += 1

    async def _ask(self, kind: str, job: Job, body: bytes) -> None:
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json"
        try:
            writer.write(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
            status = (await reader.readline()).split(b" ")[1].decode()
            self._seen.statuses[status] += 1
            if kind == "leaves":
                await reader.read(self._rng.randint(1, 1500))
            elif status == "200":
                await self._read(kind, job, reader, began)
            else:
                await reader.read()
        finally:
            writer.close()

    async def _read(self, kind: str, job: Job, reader: asyncio.StreamReader, began: float) -> None:
        """Read an answer to its end, record its times, and compare it."""
        content, times = b"", []
        while piece := await reader.read(300 if kind == "slow" else 1 << 16):
            content += piece
            times += [time.perf_counter()] * piece.count(b"data: {")
            if kind == "slow":
                await asyncio.sleep(0.05)
        lines = [line for line in content.decode().split("\r\n") if line.startswith(("data: {", "{"))]
        events = [json.loads(line.removeprefix("data: ")) for line in "\n".join(lines).split("\n") if len(line) > 2]
        text = "".join(event["choices"][0]["text"] for event in events)
        self._seen.num_wrong += text != job.text
        if kind == "stream" and times:
            self._seen.to_first.append(times[0] - began)
            self._seen.between += [after - before for before, after in pairwise(times)]
        if kind != "slow":  # those wait for themselves
            self._seen.whole.append(time.perf_counter() - began)


def _offline_times(jobs: Sequence[Job], batch: int) -> list[float]:
    """Return the seconds of each job without a server, `batch` at a time, each from its batch's beginning."""
    engine = LLM(block_size=8).llm_engine
    times: list[float] = []
    for first in range(0, len(jobs), batch):
        began = time.perf_counter()
        for number, job in enumerate(jobs[first : first + batch]):
            params = SamplingParams(max_tokens=job.max_tokens, seed=job.seed, temperature=job.temperature)
            engine.add_request(str(number), job.prompt, params)
        while engine.has_unfinished_requests:
            ended = sum(delta.finish_reason is not None for delta in engine.step())
            times += [time.perf_counter() - began] * ended
    return times


def shown(name: str, seconds: Sequence[float]) -> str:
    """Return median and 99th percentile as a line."""
    if len(seconds) < 2:
        return f"{name:<40} too few"
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return f"{name:<40} p50 {1e3 * cuts[49]:8.1f} ms   p99 {1e3 * cuts[98]:8.1f} ms   of {len(seconds):,}"


def _metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    told = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    sizes = re.search(r'num_gpu_blocks="(\d+)"', "\n".join(lines))
    return told | {"num_gpu_blocks": float(sizes.group(1) if sizes else 0)}


def _resident(pid: int) -> int:
    """Return the KiB of a process's memory, if the system has that number."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return 0 if no answer was wrong and no block leaked, else 1."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.dev.serve", description=__doc__)
    parser.add_argument("--clients", type=int, default=64, metavar="N", help="(default: 64)")
    parser.add_argument("--seconds", type=float, default=30, metavar="N", help="(default: 30)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the clients' behaviour (default: 0)")
    parser.add_argument("--num-jobs", type=int, default=400, metavar="N", help="different requests (default: 400)")
    args = parser.parse_args(argv)
    jobs = _make_jobs(args.num_jobs)
    command = [sys.executable, "-u", "-m", "mini_kv", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().rpartition(":")[2])
        try:
            lines, failed = asyncio.run(_soak(args, jobs, port, server.pid))
        finally:
            server.terminate()
    lines.append(shown(f"a request offline, {args.clients} at a time", _offline_times(jobs, args.clients)))
    print("\n".join(lines))
    return int(failed)


async def _soak(args: argparse.Namespace, jobs: Sequence[Job], port: int, pid: int) -> tuple[list[str], bool]:
    """Run the clients and return the report, and whether there was an error."""
    seen, memory = Seen(), [_resident(pid)]
    until = time.perf_counter() + args.seconds
    clients = [asyncio.ensure_future(Client(port, jobs, seen, args.seed + i).run(until)) for i in range(args.clients)]
    while time.perf_counter() < until:
        await asyncio.sleep(min(args.seconds / 10, 30))
        memory.append(_resident(pid))
    await asyncio.gather(*clients)
    while (told := await asyncio.to_thread(_metrics, port))["vllm:num_requests_running"]:
        await asyncio.sleep(0.1)
    num_blocks = told["num_gpu_blocks"] - 1
    num_leaked = round(told["vllm:kv_cache_usage_perc"] * num_blocks)
    found, asked = told["vllm:prefix_cache_hits_total"], told["vllm:prefix_cache_queries_total"]
    lines = [
        f"{args.clients} clients, {args.seconds:.0f} s: {dict(sorted(seen.kinds.items()))}",
        f"statuses {dict(sorted(seen.statuses.items()))}",
        f"wrong answers {seen.num_wrong} of {len(seen.whole):,}, leaked blocks {num_leaked} of {num_blocks:.0f}",
        f"preemptions {told['vllm:num_preemptions_total']:.0f}, found in the cache {found:,.0f} of {asked:,.0f} tokens",
        f"memory of the server, MiB: {', '.join(str(each >> 10) for each in memory)}",
        shown("to the first token", seen.to_first),
        shown("between two tokens", seen.between),
        shown("a request, served", seen.whole),
    ]
    bad = seen.num_wrong or num_leaked or set(seen.statuses) - {"200", "400", "413", "429"}
    return lines, bool(bad)


if __name__ == "__main__":
    sys.exit(main())
