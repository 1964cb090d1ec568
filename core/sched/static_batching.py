"""StaticScheduler: batches as they were before continuous batching.

A batch is formed of all waiting requests that fit; it computes their prompts at once, and nobody
joins until its longest member has ended. Who ends earlier has its answer, but its memory stays
taken until the batch is over: this module owns the list of those. It does not know which memory
is below.

NOTE: a member that has ended is computed no more, unlike in a padded batch: static batching looks
a little better here than it was.
"""

from collections.abc import Iterator
from itertools import chain

from core.request import FinishReason, Request, Sequence
from core.sched.output import SchedulerOutput
from core.sched.scheduler import Scheduler, Step
from core.trace import events as ev

__all__ = ["StaticScheduler"]

_NO_BUDGET = 1 << 40


class StaticScheduler(Scheduler):
    """Static batching: the arguments are those of `Scheduler`."""

    _held: tuple[Sequence, ...] = ()
    _ended: tuple[Request, ...] = ()

    def holders(self) -> Iterator[Sequence]:
        """Every sequence that owns memory, those that wait for their batch to end included."""
        return chain(super().holders(), self._held)

    def schedule(self) -> SchedulerOutput:
        """Decides one step; a batch whose last member was preempted is over."""
        self._end_batch()
        return super().schedule()

    def finish(self, request: Request, finish_reason: FinishReason, reason: ev.Reason) -> None:
        """Ends a request; with the last of its batch the batch's memory goes back."""
        super().finish(request, finish_reason, reason)
        self._end_batch()

    def _budget(self) -> int:
        return _NO_BUDGET

    def _schedule_waiting(self, step: Step) -> None:
        if not self.running:
            super()._schedule_waiting(step)
        elif self.waiting:
            running = ev.Reason("batch", {"running": len(self.running)})
            self._defer(self.waiting.first(), running)

    def _give_back(self, seq: Sequence) -> None:
        if self.manager.holds(seq.seq_id):
            self._held = (*self._held, seq)

    def _give_back_rest(self, request: Request) -> None:
        self._ended = (*self._ended, request)

    def _end_batch(self) -> None:
        if self.running or not (self._held or self._ended):
            return
        self._phase("free")
        held, ended = self._held, self._ended
        self._held = self._ended = ()
        for seq in held:
            self.manager.release(seq)
        for request in ended:
            self.manager.release_request(request)
