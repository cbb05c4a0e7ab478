"""Runs code that may be wrong: it may raise or never return."""

import argparse
from collections import defaultdict
from collections.abc import Generator
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.course.labkit.time_limit import TookTooLongError, each_in_time, time_limit

if TYPE_CHECKING:
    from torch import Tensor

    from mini_kv.engine.generate_text import Deltas
    from mini_kv.engine.llm_engine import LLMEngine
    from mini_kv.engine.output_processor import DeltaOutput

STEP_LIMIT_S = 30
"""Seconds that an engine may compute for a token. The slowest right one needs a few."""

TOLERANCE = 0.001
"""Largest difference of two logits that count as equal. Sums in another order give 0.00001 after 100 tokens."""


class Trial:
    """One run of an engine: its tokens, their logits, and its error."""

    def __init__(self, args: argparse.Namespace, own: OwnParts, limit: float = STEP_LIMIT_S) -> None:
        """Set the command's arguments, the learner's parts and the seconds of a step. No engine is built yet."""
        self.said: defaultdict[str, list[int]] = defaultdict(list)
        """Tokens of each request."""
        self.logits: defaultdict[str, list[Tensor]] = defaultdict(list)
        """The logits from which each of these tokens was chosen."""
        self.error: BaseException | None = None
        self.engine: LLMEngine | None = None
        self._stream: Deltas | None = None
        self.limit = limit
        self._args, self._own = args, own

    def again(self, own: OwnParts, limit: float) -> "Trial":
        """Return a run of the same prompts on other parts."""
        return Trial(self._args, own, limit)

    def prepare(self) -> "LLMEngine | None":
        """Build the engine and add the prompts. Return it, or `None` after an error."""
        # Imported late: torch is needed from here on.
        from mini_kv.course.finale.assembly import seams
        from mini_kv.engine.generate_text import make_engine, start

        try:
            with time_limit(self.limit, self.limit):
                engine = make_engine(self._args, **seams(self._own, on_logits=self.note))
                self.take(engine, start(engine, self._args))
        except (Exception, SystemExit, TookTooLongError) as error:
            self.error = error
        return self.engine

    def take(self, engine: "LLMEngine", stream: "Deltas") -> None:
        """Run this engine, whose runner calls `note`."""
        self.engine, self._stream = engine, stream

    def note(self, request_ids: list[str], logits: "Tensor") -> None:
        """Keep the logits of a step."""
        for request_id, row in zip(request_ids, logits, strict=True):
            self.logits[request_id].append(row)

    def deltas(self) -> "Generator[DeltaOutput, None, None]":
        """Yield the outputs of the steps, and end at an error."""
        if self._stream is None:
            return
        try:
            for delta in each_in_time(self._stream, self.limit):
                self.said[delta.request_id] += delta.new_token_ids
                yield delta
        except (Exception, SystemExit, TookTooLongError) as error:
            self.error = first_cause(error)

    def agrees_with(self, reference: "Trial") -> bool:
        """Run until a token or its logits differ from the other run's. Return whether none differ."""
        if self.prepare() is None:
            return False
        with closing(self.deltas()) as deltas:
            for delta in deltas:
                if not self._agrees_so_far(reference, delta.request_id):
                    if self._stream is not None:
                        with suppress(Exception):  # of requests that are aborted: there is an answer already
                            self._stream.close()
                    return False
        return self.error is None and self.said == reference.said

    def _agrees_so_far(self, reference: "Trial", request_id: str) -> bool:
        mine = self.said[request_id]
        if mine != reference.said[request_id][: len(mine)]:
            return False
        difference = self.logits[request_id][-1] - reference.logits[request_id][len(mine) - 1]
        return bool(difference.abs().max() <= TOLERANCE)  # not true of NaN, which is no small number


def first_cause(error: BaseException) -> BaseException:
    """Return the error that made a step fail, if `error` was raised while the step's requests were being aborted.

    Python keeps the first error as the context of the later one. A context that the learner's code caught itself never
    reached the engine's loop, so it is not the cause.
    """
    while error.__context__ is not None and _reached_the_loop(error.__context__):
        error = error.__context__
    return error


def _reached_the_loop(error: BaseException) -> bool:
    """Return whether the frame that caught the error belongs to `LLMEngine`."""
    trace = error.__traceback__
    return trace is not None and trace.tb_frame.f_globals["__name__"] == "mini_kv.engine.llm_engine"
