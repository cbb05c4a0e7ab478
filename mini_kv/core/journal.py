"""What an operation changes, noted so that an exception in its middle can be undone.

An operation over several requests, such as planning a step, changes many small things one after the other. If it is
interrupted (Ctrl-C, no memory, a bug), what it did is taken back:

    begin           tables A [ 1 2 ]            B [ 3 4 ]
    B preempted     tables A [ 1 2 ]                            noted: B was [ 3 4 ]
    A grows         tables A [ 1 2 4 ]                          noted: A was [ 1 2 ]
    Ctrl-C          tables A [ 1 2 ]            B [ 3 4 ]       only the block hash that 4 had is lost

The tables are the truth. Reference counts, free queue and index are made from them again (`undo.rebuild`), so it does
not matter in which of its lines an operation stopped.
"""

from dataclasses import dataclass, field
from typing import Any

from mini_kv.core.block import KVCacheBlock


@dataclass(slots=True)
class Journal:
    """Notes of one operation, shared by all groups of a cache."""

    is_open: bool = False
    """Whether an operation is under way; if a call finds it open, the one before it was interrupted."""
    tables: dict[tuple[int, str], tuple[Any, ...]] = field(default_factory=dict)
    """What a group kept of a request before the operation changed it, by group and request id."""
    promised: list[KVCacheBlock] = field(default_factory=list)
    """Blocks that got their block hash for the step under way, whose KV is not computed yet."""
    published: list[KVCacheBlock] = field(default_factory=list)
    """Blocks that got their block hash since the operation began."""
    promised_before: list[KVCacheBlock] = field(default_factory=list)
    """The promised blocks when the operation began."""

    def begin(self) -> None:
        """Start with empty notes."""
        self.tables, self.published = {}, []
        self.promised_before = list(self.promised)
        self.is_open = True
