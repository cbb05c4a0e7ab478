"""What the labs have to offer for an engine, and what of it is there and finished."""

import ast
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from mini_kv.labkit.implementation import (
    Implementation,
    ImplementationError,
    LoadError,
    get_class,
    get_function,
    resolve,
)
from mini_kv.labkit.kernels.interpreter import interpreted
from mini_kv.labkit.lab import Lab
from mini_kv.labkit.own_engine.trial import STEP_LIMIT_S, TookTooLongError, time_limit


@dataclass(frozen=True, slots=True)
class Part:
    """A class or function of a lab that the engine can use in place of its own."""

    lab_id: str
    name: str
    needs: tuple[str, ...] = ()
    """What must be finished for it, beside itself: methods of the class, or functions that it calls."""
    never: str = ""
    """Why the engine does not take it, if it never does."""

    def __str__(self) -> str:
        return f"{self.lab_id} {self.name}"


POOL = "BlockPool.num_free_blocks", "BlockPool.usage", "BlockPool.get_new_blocks", "BlockPool.touch"
QUEUE = "__init__", "popleft", "popleft_n", "remove", "append", "append_n", "prepend_n"
MANAGER = "get_num_blocks_to_allocate", "allocate_slots", "cache_blocks", "free"
HASHER = "frame", "encode_extra_keys", "hash_block_tokens", "root_block_hash", "generate_block_hash_extra_keys"
NO_WINDOW = "not needed by this model: no layer has a window"

PARTS = (
    Part("lab-02", "FreeKVCacheBlockQueue", tuple(f"FreeKVCacheBlockQueue.{name}" for name in QUEUE)),
    Part("lab-03", "BlockPool", POOL),
    Part("lab-03", "BlockPool.free_blocks", never="it knows no names: what could still be found would be reused first"),
    Part("lab-04", "get_request_block_hasher", HASHER),
    Part("lab-04", "make_block_hash_with_group_id", never="the index has its own, which every group calls"),
    Part("lab-06", "KVCacheManager", tuple(f"KVCacheManager.{name}" for name in MANAGER)),
    Part(
        "lab-07", "BlockHashToBlockMap", tuple(f"BlockHashToBlockMap.{n}" for n in ("get_one_block", "insert", "pop"))
    ),
    Part(
        "lab-07",
        "BlockPool",
        ("BlockPool.cache_full_blocks", "BlockPool._maybe_evict_cached_block", "BlockPool.free_blocks"),
    ),
    Part("lab-07", "FullAttentionManager", ("FullAttentionManager.find_longest_cache_hit",)),
    Part("lab-07", "KVCacheManager", ("KVCacheManager.get_computed_blocks",)),
    Part("lab-07", "PrefixCacheStats", ("PrefixCacheStats.record",)),
    Part("lab-08", "BlockTable", ("BlockTable.append_row", "BlockTable.add_row")),
    Part("lab-08", "compute_slot_mapping"),
    Part("lab-08", "reshape_and_cache"),
    Part("lab-08", "gather_kv", never="nobody gathers: attention reads the blocks where they lie"),
    Part("lab-09", "paged_attention_ref", ("online_softmax_update",)),
    Part("lab-09", "paged_prefill_ref", ("paged_attention_ref", "online_softmax_update")),
    Part("lab-09", "merge_attn_states", never="nothing is computed in two parts here"),
    Part("lab-10", "reshape_and_cache", ("reshape_and_cache_kernel",)),
    Part("lab-10", "paged_attention_decode", ("paged_attention_decode_kernel",)),
    Part("lab-11", "Scheduler", ("Scheduler.schedule", "Scheduler._preempt_request", "Scheduler.update_from_output")),
    Part("lab-12", "SlidingWindowManager", never=NO_WINDOW),
    Part("lab-12", "HybridKVCacheCoordinator", never=NO_WINDOW),
    Part("lab-12", "group_layers", never=NO_WINDOW),
)
"""lab-01 counts bytes and lab-05 calls a cache from outside: neither builds a part of an engine."""


@dataclass(frozen=True, slots=True)
class Found:
    """A part, and what the learner's file has of it."""

    part: Part
    value: Any = None
    """The class or function; `None` if the engine's own is used."""
    source: str = ""
    """Path of the learner's file."""
    line: int = 1
    """Where its definition begins."""
    why: str = ""
    """Why it is not used."""

    @property
    def place(self) -> str:
        """Where to look."""
        return f"{short(self.source)}:{self.line}"


def find_parts(choice: str, labs: Sequence[Lab], invocation_dir: Path) -> list[Found]:
    """Look for every part in the learner's files, each loaded once; whatever is wrong with one is noted, not raised.

    Args:
        choice: `starter`, `solution` or a folder, as in LAB_IMPL.
        labs: all labs.
        invocation_dir: what a relative path is relative to.
    """
    found: list[Found] = []
    for lab in labs:
        parts = [part for part in PARTS if part.lab_id == lab.lab_id]
        wanted = any(not part.never for part in parts)
        file = LabFile(lab, choice, len(labs), invocation_dir) if wanted else None
        found += [file.find(part) if file and not part.never else Found(part, why=part.never) for part in parts]
    return found


class LabFile:
    """The learner's file of one lab, loaded as far as it goes."""

    def __init__(self, lab: Lab, choice: str, num_labs: int, invocation_dir: Path) -> None:
        """Load it; if it cannot be loaded, note why."""
        self.lab = lab
        self.source = self.problem = ""
        self.module: ModuleType | None = None
        self.todo: set[str] = set()
        """Functions and methods that still say TODO."""
        self.lines: dict[str, int] = {}
        """Where each function, class and method begins."""
        try:
            implementation = resolve(choice, lab, num_labs, invocation_dir)
        except ImplementationError as error:
            there_are_none = f"there is no {lab.lab_id}.py and no {lab.lab_id}/starter.py"
            self.problem = str(error).splitlines()[0] if choice == "solution" else there_are_none
            return
        self.source = implementation.source
        if lab.missing is not None:
            self.problem = lab.missing
            return
        try:
            self._read_and_load(implementation)
        except SyntaxError as error:
            self.problem = f"{type(error).__name__} in line {error.lineno}: {error.msg}"
        except TookTooLongError:
            self.problem = f"loading the file takes longer than {STEP_LIMIT_S} s"
        except (Exception, SystemExit) as error:
            line = last_line(error, {self.source})
            self.problem = f"{type(error).__name__}{f' in line {line[1]}' if line else ''}: {error}"

    def _read_and_load(self, implementation: Implementation) -> None:
        tree = ast.parse(Path(self.source).read_text(encoding="utf-8"), self.source)
        for node in tree.body:
            self._note(node, "")
        with time_limit(STEP_LIMIT_S), interpreted() if self.lab.needs == "K" else nullcontext():
            self.module = implementation.load()

    def _note(self, node: ast.stmt, owner: str) -> None:
        match node:
            case ast.ClassDef():
                self.lines[node.name] = node.lineno
                for statement in node.body:
                    self._note(statement, f"{node.name}.")
            case ast.FunctionDef():
                self.lines[owner + node.name] = node.lineno
                calls = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
                if any(isinstance(function, ast.Name) and function.id == "todo" for function in calls):
                    self.todo.add(owner + node.name)

    def find(self, part: Part) -> Found:
        """Return the part, or why it cannot be used."""
        if self.module is None:
            return Found(part, source=self.source, why=self.problem)
        unfinished = [name for name in (part.name, *part.needs) if name in self.todo]
        if unfinished:
            name = self.lab.short_name(unfinished[0])
            return Found(
                part,
                source=self.source,
                line=self.lines[unfinished[0]],
                why="still TODO" if name == part.name else f"{name}: still TODO",
            )
        functions = [function for function in self.lab.functions if function.name in (part.name, *part.needs)]
        methods = [function for function in functions if "." in function.name]
        try:
            if methods:
                value: object = get_class(self.module, methods, part.name, self.source)
            else:
                for function in functions:  # those that it calls, too
                    get_function(self.module, function, self.source)
                value = getattr(self.module, part.name)
        except LoadError as error:
            return Found(part, source=self.source, why=str(error))
        return Found(part, value, self.source, self.lines.get(part.name, 1))


def last_line(error: BaseException, sources: set[str]) -> tuple[str, int, str] | None:
    """Return the innermost line of these files that was running: file, line and text; `None` if none was."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in sources:
            return frame.filename, frame.lineno or 0, frame.line or ""
    return None


def short(path: str) -> str:
    """Return the path as one would type it: relative if it lies below the working directory."""
    file = Path(path)
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else path
