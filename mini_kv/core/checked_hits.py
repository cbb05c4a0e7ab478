"""A cache that compares tokens: a hit counts only if its blocks were hashed from the request's own prefix.

A block hash covers a block's tokens and all tokens before them. Two prefixes may have the same hash, by chance or by an
attack. With SHA-256 neither has ever happened. With a fast hash an attack is easy. This manager keeps the hashed tokens
and so detects the attack.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.block_hash import generate_block_hash_extra_keys
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.request import Request


@dataclass(slots=True, eq=False)
class Beginning:
    """The input of a block hash: the prefix before the block, and the block's own tokens and extra keys."""

    before: "Beginning | None"
    own: tuple[object, ...]


class CheckedKVCacheManager(KVCacheManager):
    """A manager that checks every hit: it compares parent and tokens of every block, from the first block on.

        asked for       P' 5 6 7 8      the hash of P' is that of P
        in the cache    P  5 6 7 8      the second block has the same tokens, but another parent: no hit

    A comparison of the block's own tokens would accept it. A hit costs one comparison per block. The manager keeps
    each cached block's prefix until the block gets another hash. Use it for `hash_name="xxh3_128"`, not for SHA-256.
    """

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._named_for: dict[int, Beginning] = {}
        self._beginnings: WeakKeyDictionary[Request, list[Beginning]] = WeakKeyDictionary()

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Return the longest cached prefix that was hashed from the request's own tokens. Changes nothing."""
        limit = request.num_tokens - 1
        while True:
            hit, num_tokens = self.coordinator.find_longest_cache_hit(request.block_hashes, limit)
            limit = self._num_true_tokens(request, hit)
            if limit >= num_tokens:
                return KVCacheBlocks(hit), num_tokens

    def allocate_slots(self, request: Request, *args: object, **options: object) -> KVCacheBlocks | None:
        """Allocate as any manager does, and record the prefix of each block that got a hash."""
        with self._noting(request):
            return super().allocate_slots(request, *args, **options)  # type: ignore[arg-type]

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Cache full blocks as any manager does, and record the prefix of each."""
        with self._noting(request):
            super().cache_blocks(request, num_computed_tokens)

    def _num_true_tokens(self, request: Request, hit: tuple[Sequence[KVCacheBlock], ...]) -> int:
        """Return the number of tokens before the first block of any group that was hashed from another prefix."""
        num_true = request.num_tokens
        for manager, blocks in zip(self.coordinator.single_type_managers, hit, strict=True):
            for index, block in enumerate(blocks):
                end = (index + 1) * manager.block_size
                if block.is_null:
                    continue
                theirs = self._named_for[block.block_id]
                if not _is_same(theirs, self._beginning_of(request, end)):
                    num_true = min(num_true, index * manager.block_size)
                    break
                self._beginnings[request][end // self.coordinator.hash_block_size - 1] = theirs  # next time at a glance
        return num_true

    @contextmanager
    def _noting(self, request: Request) -> Iterator[None]:
        """After the call, record the prefix of each of the request's blocks that got a block hash."""
        managers = self.coordinator.single_type_managers
        before = [manager.num_cached_block.get(request.request_id, 0) for manager in managers]
        yield
        for manager, start in zip(managers, before, strict=True):
            table = manager.req_to_blocks.get(request.request_id, [])
            for index in range(start, manager.num_cached_block.get(request.request_id, 0)):
                if table[index].block_hash is not None:
                    beginning = self._beginning_of(request, (index + 1) * manager.block_size)
                    self._named_for[table[index].block_id] = beginning

    def _beginning_of(self, request: Request, num_tokens: int) -> Beginning:
        """Return the request's first `num_tokens` tokens and the other inputs of its block hashes, as a chain."""
        chain = self._beginnings.setdefault(request, [])
        size = self.coordinator.hash_block_size
        while len(chain) * size < num_tokens:
            start = len(chain) * size
            tokens = tuple(request.token_ids[start : start + size])
            extras = generate_block_hash_extra_keys(request, start, start + size)
            salt = () if chain else (request.cache_salt,)
            chain.append(Beginning(chain[-1] if chain else None, (*salt, tokens, *extras)))
        return chain[num_tokens // size - 1]


def _is_same(one: Beginning | None, other: Beginning | None) -> bool:
    """Return whether two prefixes are equal, block by block."""
    while one is not other:
        if one is None or other is None or one.own != other.own:
            return False
        one, other = one.before, other.before
    return True
