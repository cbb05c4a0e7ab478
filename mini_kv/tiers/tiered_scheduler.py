"""A scheduler with tiers below its pool: the engine's own, which calls a connector in four places."""

from typing import Any

from mini_kv.core.request import Request
from mini_kv.core.sched.output import EngineCoreOutput, SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.core.sched.step import Step
from mini_kv.tiers.connector import TieringConnector


class TieredScheduler(Scheduler):
    """Lets a request wait for its blocks in the tiers, and admits it with them.

    Source: vLLM `Scheduler` with a connector: requests in `WAITING_FOR_REMOTE_KVS` are skipped until they are ready.
    """

    def __init__(self, *args: Any, connector: TieringConnector, **options: Any) -> None:
        """Take the arguments of `Scheduler`, and the connector."""
        super().__init__(*args, **options)
        self.connector = connector
        self._was_put_off = False
        """Whether a request has just started to fetch more blocks at its turn."""

    def add_request(self, request: Request, **options: Any) -> None:
        """Add as in `Scheduler`, and start to fetch the blocks that the request may hit."""
        super().add_request(request, **options)
        try:
            self.connector.begin(request)
        except BaseException:
            self.finish_requests([request.request_id])
            raise

    def schedule(self) -> SchedulerOutput:
        """Plan as in `Scheduler`. The plan includes the blocks that the worker has to move."""
        output = super().schedule()
        output.kv_connector_metadata = self.connector.build_connector_meta(self.requests)
        return output

    def update_from_output(self, *args: Any) -> list[EngineCoreOutput]:
        """Update as in `Scheduler`. The pool now owns the loaded blocks."""
        outputs = super().update_from_output(*args)
        self.connector.confirm()
        return outputs

    def abandon_step(self) -> None:
        """Abandon as in `Scheduler`, also between steps. Blocks that were to be loaded are still in their tier."""
        super().abandon_step()
        self.connector.abandon()

    def _schedule_waiting(self, step: Step) -> None:
        """Schedule as in `Scheduler`, but skip requests with blocks that are being fetched.

        If no other request can run, the step waits for the first of them, for a limited time.
        """
        for request in self.waiting:
            self.connector.begin(request)
        while True:
            self._was_put_off = False
            pending = [request for request in self.waiting if self.connector.is_pending(request)]
            for request in pending:
                self.waiting.remove_request(request)
            super()._schedule_waiting(step)
            for request in reversed(pending):
                self.waiting.prepend_request(request)
            if self.running or not (pending or self._was_put_off):
                return
            self.connector.wait(self.waiting)

    def _admit(self, request: Request, step: Step) -> bool:
        """Admit as in `Scheduler`, with the blocks that memory adds to the request's hit."""
        if not self.connector.is_ready(request):
            self._was_put_off = True
            return False
        self.connector.promote(request)
        is_in = super()._admit(request, step)
        if is_in:
            self.connector.end(request)
        return is_in

    def recover(self) -> None:
        """Recover as in `Scheduler`. Every lease ends, and memory keeps its entries."""
        self.connector.abandon()  # first: if it is interrupted, the next call begins with all of this again
        super().recover()
