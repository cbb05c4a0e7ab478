"""Helpers for the tests of lab-04-radix: prepared trees, all visible state of a tree, the engine."""

from collections.abc import Mapping, Sequence

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.course.given.small_tree import SmallNode, SmallTree
from mini_kv.course.labkit.fixture import InWords, LabUnderTest
from mini_kv.story.edge import EdgeKind
from mini_kv.story.recorder import Recorder
from mini_kv.story.traced_manager import TracedKVCacheManager

Nodes = Sequence[tuple[str, str, Sequence[Sequence[int]]]]
"""Nodes by hand: the tokens above, those of the run, and the ids of each block. Tokens are letters."""


def tokens(letters: str) -> list[int]:
    """Return a token per letter: "a" is 1."""
    return [ord(letter) - ord("a") + 1 for letter in letters]


def letters(path: Sequence[int]) -> str:
    """Return the letters of these tokens."""
    return "".join(chr(token + ord("a") - 1) if 0 < token < 27 else "?" for token in path)


class Desk:
    """A tree that is built by hand, and the calls of the learner's functions on it."""

    def __init__(self, lab: LabUnderTest, block_size: int = 1, nodes: Nodes = ()) -> None:
        """Make a tree with these nodes, a parent before its children."""
        self.lab, self.tree = lab, SmallTree(block_size)
        made = {"": self.tree.root}
        for above, run, ids in nodes:
            blocks = [tuple(tokens(run[i : i + block_size])) for i in range(0, len(run), block_size)]
            node = made[above + run] = SmallNode(blocks, [list(one) for one in ids])
            made[above].children[blocks[0]] = node

    def finds(self, prompt: str, want: list[int], why: str = "") -> None:
        """Look a prompt up. The tree must be unchanged."""
        before = self.seen()
        got = self.lab.match(self.tree, tokens(prompt))
        self.lab.expect_all(
            [(f"blocks of {prompt!r}", want, got, why), ("the tree after match", before, self.seen(), "it only reads")]
        )

    def insert(self, prompt: str, ids: Sequence[int]) -> None:
        """Insert a prompt with the learner's `insert`. The lists that it is given must be unchanged."""
        given = (tokens(prompt), list(ids))
        self.lab.insert(self.tree, *given)
        want = (tokens(prompt), list(ids))
        self.lab.expect("the tokens and ids that insert was given", want, given, "the lists are the caller's", rule=4)

    def remove(self, block_id: int) -> InWords:
        """Remove a block with the learner's `remove`, and return whether it raised."""
        try:
            self.lab.remove(self.tree, block_id)
        except ValueError:
            return InWords("ValueError raised")
        return InWords("nothing raised")

    def seen(self) -> dict[str, list[int]]:
        """Return the ids at each place, by the letters from the root to it."""
        return {letters(path): ids for path, ids in self.tree.contents().items()}

    def holds(self, what: str, want: Mapping[str, list[int]], why: str = "") -> None:
        """Compare the ids at all places, and the form of the tree."""
        self.lab.expect_all(
            [
                (f"the tree after {what}", dict(want), self.seen(), why),
                (f"faults of its form after {what}", [], self.tree.faults(), "a child's key is its run's first block"),
            ]
        )


class Engine:
    """The engine's cache with its chain of hashes. It reports entries and evictions, so that a tree can repeat them."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        recorder = Recorder()
        self.manager = KVCacheManager.for_full_attention(num_blocks, block_size, new_block=recorder.new_block)
        self.kv = TracedKVCacheManager(self.manager, recorder)
        self.running: dict[str, Request] = {}
        self.block_size = block_size

    def finds(self, prompt: Sequence[int]) -> list[int]:
        """Return the blocks that the engine finds for these tokens, the last one included."""
        asks = self.manager.new_request("asks", [*prompt, 0])
        blocks, _ = self.manager.get_computed_blocks(asks)
        return [block.block_id for block in blocks.blocks[0]][: len(prompt) // self.block_size]

    def admit(self, name: str, prompt: Sequence[int]) -> tuple[list[int], list[int]] | None:
        """Admit a request. Return the blocks evicted for it and its full blocks, or `None` if it is refused."""
        request = self.kv.manager.new_request(name, prompt)
        blocks, num_hits = self.kv.get_computed_blocks(request)
        if self.kv.allocate_slots(request, len(prompt) - num_hits, num_hits, blocks) is None:
            return None
        self.running[name] = request
        evicted = [edge.block_id for edge in self.kv.spans[-1].edges if edge.kind is EdgeKind.EVICTED]
        return evicted, self.manager.get_block_ids(name)[0][: len(prompt) // self.block_size]

    def leave(self, name: str) -> None:
        """Free a request's blocks if it is running."""
        if name in self.running:
            self.kv.free(self.running.pop(name))
