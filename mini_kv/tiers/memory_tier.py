"""The tier next to the engine: envelopes in this process's memory. The least recently used are evicted first.

A lookup returns a lease. A leased entry is not evicted. So it stays between the lookup and its use, even when the same
caller stores other entries in between:

    lookup(k)  -> lease       k is here and cannot be evicted
    load       -> envelope    as often as needed
    take       -> nothing     the engine owns the block now: it is removed from this tier
    lend       -> nothing     it will be taken soon: other blocks may already use its room
    release    -> nothing     the lease is over, k may be evicted again
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass

from mini_kv.core.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """A claim on one entry. It is invalid once the entry is removed, even if a new entry has the same key."""

    key: bytes
    envelope: bytes


class MemoryTier:
    """Envelopes by key, up to a number of bytes. For one thread."""

    def __init__(self, capacity_bytes: int) -> None:
        """Start empty. Raises `ConfigError` if the capacity is too small."""
        if capacity_bytes < 1:
            raise ConfigError(f"capacity_bytes is {capacity_bytes}, it must be at least 1")
        self.capacity_bytes = capacity_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()
        self._num_leases: Counter[bytes] = Counter()
        self._leases: set[Lease] = set()
        self._lent: set[bytes] = set()
        """Lent entries. They do not count as used room until they are taken or given back."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def in_order(self) -> list[bytes]:
        """Return all keys in the order of eviction, if none is leased."""
        return list(self._entries)

    def lookup(self, key: bytes) -> Lease | None:
        """Return a lease on the entry, or `None` if it is not here. The lookup counts as a use."""
        envelope = self._entries.get(key)
        if envelope is None:
            return None
        self._entries.move_to_end(key)
        lease = Lease(key, envelope)
        self._leases.add(lease)
        self._num_leases[key] += 1
        return lease

    def load(self, lease: Lease) -> bytes | None:
        """Return the envelope, or `None` if the entry was taken or discarded since."""
        return lease.envelope if self._entries.get(lease.key) is lease.envelope else None

    def lend(self, lease: Lease) -> None:
        """Free the entry's room while it is moved up. If it is given back, the tier may hold more than its capacity."""
        if self.load(lease) is not None and lease.key not in self._lent:
            self._lent.add(lease.key)
            self.num_bytes -= len(lease.envelope)

    def release(self, lease: Lease) -> None:
        """End a lease. Ending it twice does nothing."""
        if lease in self._leases:
            if lease.key in self._lent:
                self._lent.remove(lease.key)
                self.num_bytes += len(lease.envelope)
            self._leases.remove(lease)
            self._num_leases[lease.key] -= 1
            if self._num_leases[lease.key] == 0:
                del self._num_leases[lease.key]

    def take(self, lease: Lease) -> None:
        """End a lease and remove the entry: the engine owns its block now."""
        if self.load(lease) is not None:
            self.discard(lease.key)
        self.release(lease)

    def store(self, key: bytes, envelope: bytes) -> list[tuple[bytes, bytes]] | None:
        """Store an entry. Return the entries that were evicted for it, in order.

        Return `None` and change nothing if the leased entries leave too little room. An entry that is here already is
        unchanged and counts as used: equal keys mean equal KV.
        """
        if key in self._entries:
            self._entries.move_to_end(key)
            return []
        leaving = self._leaving_for(len(envelope))
        if leaving is None:
            return None
        pushed_out = [(old, self._entries[old]) for old in leaving]
        for old in leaving:
            self.discard(old)
        self._entries[key] = envelope
        self.num_bytes += len(envelope)
        return pushed_out

    def release_all(self) -> None:
        """End all leases, also after an interrupted call. Costs O(entries)."""
        self._leases, self._num_leases, self._lent = set(), Counter(), set()
        self.num_bytes = sum(map(len, self._entries.values()))

    def clear(self) -> None:
        """Remove all entries, leased or not."""
        self._entries.clear()
        self.release_all()

    def discard(self, key: bytes) -> None:
        """Remove an entry, leased or not, if it is here."""
        envelope = self._entries.pop(key, None)
        if key in self._lent:
            self._lent.remove(key)
        elif envelope is not None:
            self.num_bytes -= len(envelope)

    def _leaving_for(self, num_bytes: int) -> list[bytes] | None:
        """Return the keys to evict so that `num_bytes` fit, or `None` if that is not possible."""
        leaving: list[bytes] = []
        excess = self.num_bytes + num_bytes - self.capacity_bytes
        for key, envelope in self._entries.items():
            if excess <= 0:
                break
            if key not in self._num_leases:
                leaving.append(key)
                excess -= len(envelope)
        return leaving if excess <= 0 else None
