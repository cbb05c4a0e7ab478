"""The manager's scenarios: those that are written by hand, and long random ones, the same at each run.

mini_kv plays along while the random ones are made, so that a scenario only asks for what makes sense (no request is
freed twice); what the calls must answer is recorded from vLLM like that of all the others. Caches are small: there is
always too little room, and prompts share a few beginnings.
"""

import random
from collections.abc import Callable
from typing import Any

from mini_kv.course.verify.adapters.mini_kv_manager import ManagerAdapter
from mini_kv.course.verify.manager import DEFAULTS, LANGUAGE, SCENARIO_FILES, Player
from mini_kv.course.verify.scenario_language import Scenario, format_numbers

SCENARIOS = (
    ("random, contended", 1, {"num_blocks": 10, "block_size": 4}),
    ("random, one text", 2, {"num_blocks": 14, "block_size": 4}),
    ("random, one token per block", 3, {"num_blocks": 18, "block_size": 1}),
    ("random, blocks of 16", 4, {"num_blocks": 9, "block_size": 16}),
    ("random, caching off", 5, {"num_blocks": 10, "block_size": 4, "enable_caching": False}),
    ("random, namespaces", 6, {"num_blocks": 16, "block_size": 4}),
    ("random, with drafts", 7, {"num_blocks": 16, "block_size": 4}),
    ("random, roomy", 8, {"num_blocks": 32, "block_size": 4}),
    ("random, a window", 9, {"num_blocks": 24, "block_size": 4, "groups": "full:4 window:4:6"}),
    (
        "random, two windows, one text",
        10,
        {"num_blocks": 40, "block_size": 4, "groups": "full:4 window:4:7 window:4:14"},
    ),
    ("random, windows alone", 11, {"num_blocks": 12, "block_size": 4, "groups": "window:4:9"}),
    ("random, windows with drafts", 12, {"num_blocks": 30, "block_size": 4, "groups": "full:4 window:4:9"}),
    ("random, chunks, one text", 13, {"num_blocks": 24, "block_size": 4, "groups": "full:4 chunks:4:8"}),
    ("random, states, one text", 14, {"num_blocks": 24, "block_size": 4, "groups": "full:4 state:4"}),
    ("random, states and windows", 15, {"num_blocks": 40, "block_size": 4, "groups": "full:4 state:4 window:4:6"}),
    ("random, larger blocks", 16, {"num_blocks": 40, "block_size": 4, "groups": "full:4 window:2:5"}),
    ("random, a drafter", 17, {"num_blocks": 14, "block_size": 4, "drafter_groups": [0]}),
    (
        "random, a drafter with a window",
        18,
        {"num_blocks": 32, "block_size": 4, "groups": "full:4 window:4:6", "drafter_groups": [0, 1]},
    ),
    (
        "random, a drafter in one of two windows",
        19,
        {"num_blocks": 44, "block_size": 4, "groups": "full:4 window:4:7 window:4:14", "drafter_groups": [1]},
    ),
    (
        "random, lookahead hashes",
        20,
        {"num_blocks": 24, "block_size": 4, "groups": "full:4 window:4:6", "num_hash_lookahead_tokens": 1},
    ),
    (
        "random, lookahead hashes beside states",
        21,
        {"num_blocks": 24, "block_size": 4, "groups": "full:4 state:4", "num_hash_lookahead_tokens": 1},
    ),
    ("six messages, contended", 22, {"num_blocks": 8, "block_size": 4}),
    ("six messages, one text", 23, {"num_blocks": 12, "block_size": 2}),
    ("six messages, one token per block", 24, {"num_blocks": 16, "block_size": 1}),
    ("six messages, roomy", 25, {"num_blocks": 20, "block_size": 3}),
)
"""Name, seed and settings. With six messages, those of the challenge, no block is evicted but for another."""
NUM_CALLS = 100
_MAX_WAITING = 3
NAMESPACES = ("", " salt=one", " salt=two", " lora=math:/one", " lora=math:/two", " image=cat@1+2", " image=cat@2+2")


class Generator:
    """Makes one scenario, call by call."""

    def __init__(self, name: str, seed: int, settings: dict[str, Any]) -> None:
        """Build the engine that plays along."""
        self.name, self.seed, self.settings = name, seed, settings
        self.random = random.Random(seed)
        self.block_size: int = settings["block_size"]
        self.engine = ManagerAdapter()
        self.player = Player(self.engine, DEFAULTS | settings)
        self.calls: list[str] = []
        self.waiting: list[str] = []
        """Requests that hold nothing: new, refused or preempted."""
        self.ready: list[str] = []
        """Admitted, and what they were granted is computed."""
        self.in_step: list[str] = []
        """Admitted, and their step has not run."""
        self.num_made = 0

    def call(self, text: str) -> str:
        """Add a call, play it, and return its result."""
        (call,) = LANGUAGE.parse_line(text)
        self.calls.append(text)
        return self.player.perform(call)["result"]

    def generate(self) -> list[str]:
        """Return the calls."""
        actions: list[tuple[int, Callable[[], None]]] = [
            (5, self.make),
            (7, self.admit),
            (8, self.grow),
            (9, self.compute),
            (3, self.free),
            (2, self.preempt),
            (1, self.evict),
            (1, self.reset),
        ]
        if self.name.startswith("six messages"):
            actions = actions[:5]
        weights = [weight for weight, _ in actions]
        while len(self.calls) < NUM_CALLS:
            self.random.choices(actions, weights)[0][1]()
        return self.calls

    def make(self) -> None:
        """Make a request whose prompt begins like one of few texts and ends on its own, or does not."""
        if len(self.waiting) >= _MAX_WAITING:
            return
        text = 0 if "one text" in self.name else 1000 * self.random.randrange(3)
        shared = self.random.randrange(1, 5 * self.block_size + 2)
        tokens = [*range(text, text + shared)]
        if self.random.random() < 0.5:
            own = 10_000 + 100 * self.num_made
            tokens += range(own, own + self.random.randrange(1, 2 * self.block_size + 1))
        handle = f"R{self.num_made}"
        self.num_made += 1
        namespace = self.random.choice(NAMESPACES) if "namespaces" in self.name else ""
        self.call(f"new {handle} {format_numbers(tokens)}{namespace}")
        self.waiting.append(handle)

    def admit(self) -> None:
        """Look a waiting request up and try to let it in, whole or with a first chunk."""
        if not self.waiting:
            return
        handle = self.random.choice(self.waiting)
        num_hit = int(self.call(f"lookup {handle}").split()[1].rstrip(":"))
        rest = self.engine.requests[handle].num_tokens - num_hit
        chunk = "rest" if self.random.random() < 0.6 else str(self.chunk(rest))
        how = "adopt" if self.random.random() < 0.3 else "pass"
        if self.call(f"allocate {handle} {chunk} hit={how}{self.lookahead()}") != "refused":
            self.waiting.remove(handle)
            self.in_step.append(handle)

    def grow(self) -> None:
        """Go on with a prefill, or decode a token, perhaps with drafts behind it."""
        if not self.ready:
            return
        handle = self.random.choice(self.ready)
        request = self.engine.requests[handle]
        if request.num_computed_tokens == request.num_tokens:
            last = request.token_ids[-1]
            self.call(f"append {handle} {last + 1 if self.random.random() < 0.7 else self.random.randrange(50)}")
        rest = request.num_tokens - request.num_computed_tokens
        num_new = self.chunk(rest)
        if "drafts" in self.name and num_new == rest:
            num_new += self.random.randrange(6)
        if self.call(f"allocate {handle} {num_new}{self.lookahead()}") != "refused":
            self.ready.remove(handle)
            self.in_step.append(handle)
        elif "groups" in self.settings:  # vLLM slides a window before it refuses, mini_kv does not: leave it out
            self.calls.pop()

    def chunk(self, rest: int) -> int:
        """Return how many of the tokens that are left the next step computes; states need whole blocks, or the rest."""
        if "states" in self.name:
            num_blocks = rest // self.block_size
            return self.block_size * self.random.randrange(1, num_blocks + 1) if num_blocks else rest
        return self.random.randrange(1, rest + 1)

    def compute(self) -> None:
        """Run the step of one request; drafts that are no tokens are rejected."""
        if not self.in_step:
            return
        while self.in_step:
            self.compute_one()
            if "states" not in self.name:  # a step has an end, and from then on its states can be adopted
                return

    def compute_one(self) -> None:
        """Run the step of the request that waited longest."""
        handle = self.in_step.pop(0)
        self.call(f"compute {handle}")
        request = self.engine.requests[handle]
        too_many = request.num_computed_tokens - request.num_tokens
        if too_many > 0:
            self.call(f"reject {handle} {too_many}")
        self.ready.append(handle)

    def free(self) -> None:
        """End a request, in one case of ten before its step ran."""
        live = self.live(0.1)
        if live:
            self.call(f"free {live.pop(self.random.randrange(len(live)))}")

    def preempt(self) -> None:
        """Put a request back among the waiting ones."""
        live = self.live(0.3)
        if live:
            handle = live.pop(self.random.randrange(len(live)))
            self.call(f"preempt {handle}")
            self.waiting.append(handle)

    def live(self, share_in_step: float) -> list[str]:
        """Return the requests whose step has run, or those whose step has not: then states would never be true."""
        use = self.in_step and self.random.random() < share_in_step and "states" not in self.name
        return self.in_step if use else self.ready

    def evict(self) -> None:
        """Drop the keys of one or two blocks."""
        num_blocks = self.settings["num_blocks"]
        self.call(
            "evict " + " ".join(str(self.random.randrange(num_blocks)) for _ in range(self.random.choice((1, 2))))
        )

    def reset(self) -> None:
        """Ask for a reset, usually in vain."""
        if self.random.random() < 0.4:
            self.call("reset")

    def lookahead(self) -> str:
        """Return the option, sometimes."""
        use = "drafts" in self.name and self.random.random() < 0.4
        return f" lookahead={self.random.randrange(1, 6)}" if use else ""


def make(name: str, seed: int, settings: dict[str, Any]) -> Scenario:
    """Return a scenario."""
    calls = Generator(name, seed, settings).generate()
    group = "eviction" if name.startswith("six messages") else "random"
    head = {"name": name, "group": group, "purpose": f"{len(calls)} calls, seed {seed}."}
    return LANGUAGE.parse_scenario({**head, **settings, "calls": "\n".join(calls)})


def generated() -> list[Scenario]:
    """Return the random scenarios."""
    return [make(*scenario) for scenario in SCENARIOS]


def scenarios() -> list[Scenario]:
    """Return all scenarios of the manager, in the order in which they are recorded."""
    first, *others = SCENARIO_FILES
    return [*LANGUAGE.read([first]), *generated(), *LANGUAGE.read(others)]
