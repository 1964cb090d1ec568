"""Scheduler: who runs this step, with how many tokens, and who has to wait or give way.

There are no phases: every request's stored tokens chase its known tokens, within a budget of
tokens a step. Running requests come first, in order; when one finds no room, the policy names a
victim. Swapped requests come next ("paper"), then waiting ones, unless somebody was preempted in
this step; the first that does not fit stops the line (vLLM 0.33.0, and 0.6.2 for "paper").

It owns the queues. It does not know tensors, text or how tokens are chosen; what happens after
the forward is in `core.sched.update`.
"""

from collections.abc import Callable, Iterator
from typing import Literal

from core.cache.interface import NO_MATCH, CacheManager, PrefixMatch, SlotPlan
from core.config import EngineConfig
from core.errors import InvariantError
from core.request import FinishReason, Request, Sequence, Status
from core.sched.output import ScheduledSequence, SchedulerOutput
from core.sched.policy import choose_victim, make_waiting_queue
from core.text import sentence
from core.trace import events as ev
from core.trace.recorder import Recorder

__all__ = ["Scheduler", "Step"]

_HERE = "core/sched/scheduler.py:"


class Step:
    """One step in the making.

    Attributes:
        undone: for each copy that was taken back, its destination: where the content still is.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.scheduled: dict[str, list[ScheduledSequence]] = {}  # by request id, in order
        self.copies: dict[str, list[tuple[int, int]]] = {}
        self.undone: dict[int, int] = {}
        self.swap_out: list[tuple[int, int]] = []
        self.swap_in: list[tuple[int, int]] = []
        self.admitted: list[Request] = []
        self.preempted: list[Request] = []
        self.failed: list[Request] = []

    @property
    def short(self) -> bool:
        """Whether somebody had to give way."""
        return bool(self.preempted or self.failed)


class Scheduler:
    """Continuous batching over one memory.

    Attributes:
        waiting, running, swapped: the queues; a request is in at most one.
        num_preemptions, queried_tokens, hit_tokens: totals; tokens are those of prefix lookups.
        on_admit: is told who is admitted and what was found, before memory changes.
    """

    def __init__(
        self,
        config: EngineConfig,
        manager: CacheManager,
        recorder: Recorder | None = None,
        *,
        max_model_len: int = 1 << 30,
    ) -> None:
        self.config = config
        self.manager = manager
        self.max_model_len = max_model_len
        self.waiting = make_waiting_queue(config.policy)
        self.running: list[Request] = []
        self.swapped: list[Request] = []
        self.num_steps = 0
        self.num_preemptions = 0
        self.queried_tokens = 0
        self.hit_tokens = 0
        self._deferred: tuple[str | int, ...] = ()  # the request that was last told to wait, why
        self.on_admit: Callable[[Request, PrefixMatch], None] | None = None
        self._recorder = recorder

    # ------------------------------------------------------------ in and out

    def requests(self) -> Iterator[Request]:
        """Every unfinished request."""
        yield from self.waiting
        yield from self.running
        yield from self.swapped

    def holders(self) -> Iterator[Sequence]:
        """Every sequence that owns memory on the device."""
        for request in self.running:
            yield from request.sequences

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running) + len(self.swapped)

    def refusal(self, request: Request) -> ev.Reason | None:
        """Why a request can never run, or None when it can.

        vLLM checks its pool at start against the longest possible request, so that none can block
        the line for ever; with pools this small each request is checked when it arrives.
        """
        length = len(request.prompt_token_ids)
        if length >= self.max_model_len:
            return ev.Reason("too_long", {"tokens": length, "limit": self.max_model_len})
        reason = self.manager.never_fits(request, self.max_model_len)
        if reason is not None:
            return reason
        if not self.config.chunked_prefill and length > self.config.max_num_batched_tokens:
            budget = self.config.max_num_batched_tokens
            return ev.Reason("over_budget", {"tokens": length, "budget": budget})
        wanted = request.params.num_sequences
        if wanted > self.config.max_num_seqs:
            return ev.Reason(
                "too_many_sequences", {"wanted": wanted, "limit": self.config.max_num_seqs}
            )
        if self._width(request) > self.config.max_num_batched_tokens:
            values = {"wanted": wanted, "budget": self.config.max_num_batched_tokens}
            return ev.Reason("wider_than_budget", values)
        return None

    def add(self, request: Request, texts: tuple[str, ...] = ()) -> None:
        """Puts a request that passed `refusal` behind the waiting ones."""
        self.waiting.add(request)
        if self._recorder is not None:
            ids = request.prompt_token_ids
            params = request.params
            many = params.num_sequences if self.config.semantics == "paper" else 1
            reason = ev.Reason("queued", {"prompt": len(ids), "waiting": len(self.waiting)})
            self._recorder.phase = "check"
            self._recorder.emit(
                ev.RequestArrived, _HERE + "add", reason, request.request_id, request.label, ids,
                texts or ("",) * len(ids), params.max_tokens, many, request.priority,
                request.arrival,
            )  # fmt: skip

    # -------------------------------------------------------------- one step

    def schedule(self) -> SchedulerOutput:
        """Decides one step and allocates its blocks."""
        self.num_steps += 1
        step = Step(self._budget())
        copies, copied = self.manager.take_copies()
        self._schedule_running(step)
        if not step.short:
            self._schedule_swapped(step)
        if not step.short and not self.swapped:
            self._schedule_waiting(step)
        return SchedulerOutput(
            step=self.num_steps,
            scheduled=tuple([item for items in step.scheduled.values() for item in items]),
            copies=(*copies, *[pair for pairs in step.copies.values() for pair in pairs]),
            swap_out=tuple(step.swap_out),
            swap_in=tuple(step.swap_in),
            admitted=tuple(step.admitted),
            preempted=tuple(step.preempted),
            failed=tuple(step.failed),
            copied=copied,
        )

    def _budget(self) -> int:
        """Tokens that one step may compute."""
        return self.config.max_num_batched_tokens

    def _schedule_running(self, step: Step) -> None:
        index = 0
        while index < len(self.running) and step.budget > 0:
            request = self.running[index]
            if self._decode_in_place(request, step):
                index += 1
                continue
            plans = self._plan_or_preempt(request, step)
            if plans is None:
                break
            # A victim before this request in the list has moved it forward.
            index = self.running.index(request) if step.short else index
            index += 1
            if plans:
                self._commit(request, plans, step, plans[0].num_new_tokens)

    def _decode_in_place(self, request: Request, step: Step) -> bool:
        """Puts a request on the step whose one token has its slot already; whether it could.

        The common case of every step, and nothing but a shorter way of planning and committing.
        """
        seq = request.sequences[0]
        start, known = seq.num_computed_tokens, len(seq.token_ids)
        if known - start != 1 or known == seq.num_prompt_tokens or len(request.sequences) > 1:
            return False
        if not self.manager.has_slot(seq):
            return False
        if self._recorder is not None:
            self._report_scheduled(SlotPlan(seq, NO_MATCH, start, 1, 0), 1, "_decode_in_place")
        block_ids = self.manager.block_ids(seq)
        item = ScheduledSequence(seq, "decode", start, 1, block_ids, True)
        step.scheduled[request.request_id] = [item]
        step.budget -= 1
        return True

    def _plan_or_preempt(self, request: Request, step: Step) -> list[SlotPlan] | None:
        """Room for the request's next tokens; None when it had to give way itself.

        An empty list means that the budget does not allow it a token in this step.
        """
        tokens = self._tokens_for(request, step.budget)
        if not tokens:
            return []
        while (plans := self.manager.plan_group(request.sequences, tokens)) is None:
            victim = choose_victim(self.config.policy, self.running)
            self._preempt(victim, step)
            if victim is request:
                return None
        return plans

    def _tokens_for(self, request: Request, budget: int) -> int:
        """Tokens a sequence of the request for this step, 0 when the budget is spent."""
        if len(request.sequences) > 1:  # all its sequences append one token, or none does
            return 1 if len(request.sequences) <= budget else 0
        seq = request.sequences[0]
        wanted = len(seq.token_ids) - seq.num_computed_tokens
        return min(self._capped(wanted), budget) if wanted > 1 else min(wanted, budget)

    def _capped(self, wanted: int) -> int:
        """`wanted` within the limit for long prompts, which holds while others want to run."""
        threshold = self.config.long_prefill_token_threshold
        alone = len(self.running) + len(self.waiting) <= 1
        return min(wanted, threshold) if threshold and not alone else wanted

    def _commit(self, request: Request, plans: list[SlotPlan], step: Step, tokens: int) -> None:
        """Allocates what was planned and puts the request's sequences on the step."""
        items, copies = [], []
        for plan in plans:
            if self._recorder is not None:
                self._report_scheduled(plan, tokens, "_commit")
            allocation = self.manager.allocate(plan)
            if allocation.copy is not None:
                copies.append(allocation.copy)
            items.append(self._scheduled(plan, tokens))
        step.budget -= tokens * len(items)
        step.scheduled[request.request_id] = items
        if copies:
            step.copies[request.request_id] = copies

    def _scheduled(self, plan: SlotPlan, tokens: int) -> ScheduledSequence:
        seq = plan.seq
        end = plan.stored + tokens
        return ScheduledSequence(
            seq,
            "decode" if _is_decode(seq, tokens) else "prefill",
            plan.stored,
            tokens,
            self.manager.block_ids(seq),
            end == len(seq.token_ids),
        )

    def _schedule_swapped(self, step: Step) -> None:
        while self.swapped:
            request = self.swapped[0]
            width = len(request.sequences)
            if width > step.budget or self._num_sequences() + width > self.config.max_num_seqs:
                break
            self._phase("allocate")
            pairs = self.manager.swap_in(
                request.request_id,
                request.sequences,
                keep_free=self.config.watermark_blocks if self.running else 0,
            )
            if pairs is None:
                break
            self.swapped.pop(0)
            step.swap_in.extend(pairs)
            self._admit(request, step, NO_MATCH, queried=0)
            tokens = self._tokens_for(request, step.budget)
            plans = self.manager.plan_group(request.sequences, tokens)
            if plans is None:
                raise InvariantError(f"{request.request_id} swapped in without room to go on")
            self._commit(request, plans, step, tokens)

    def _schedule_waiting(self, step: Step) -> None:
        room = self.config.max_num_seqs - self._num_sequences()
        while self.waiting:
            request = self.waiting.first()
            room -= self._width(request)
            if room < 0:
                self._defer(request, ev.Reason("seqs", {"limit": self.config.max_num_seqs}))
                break
            if step.budget <= 0:
                self._defer_to_budget(request)
                break
            if not self._try_admit(request, step):
                break

    def _try_admit(self, request: Request, step: Step) -> bool:
        seq = request.sequences[0]
        match = self.manager.find_prefix(seq)
        known = len(seq.token_ids)
        wanted = self._capped(known - match.tokens)
        if not self.config.chunked_prefill and step.budget < min(
            wanted, self.config.max_num_batched_tokens
        ):
            self._defer_to_budget(request)
            return False
        tokens = min(wanted, step.budget)
        whole = self.config.semantics == "paper"  # room for the whole prompt is taken at once
        keep_free = self.config.watermark_blocks if self.running or whole else 0
        self._phase("check")
        plan = self.manager.check_slots(
            seq,
            known - match.tokens if whole else tokens,
            match,
            must_fit=known if self.config.reserve_full_prompt else 0,
            keep_free=keep_free,
        )
        if plan is None:
            self._defer_to_memory(request, match, keep_free)
            return False
        self.waiting.pop()
        self._admit(request, step, match, queried=known if self.config.caching else 0)
        self._commit(request, [plan], step, tokens)
        return True

    def _admit(self, request: Request, step: Step, match: PrefixMatch, queried: int) -> None:
        if self.on_admit is not None:
            self.on_admit(request, match)
        returning = request.num_preemptions > 0
        request.transition_to(Status.RUNNING)
        self.running.append(request)
        step.admitted.append(request)
        self._waits_no_more(request)
        self.queried_tokens += queried
        self.hit_tokens += match.tokens
        if self._recorder is not None:
            self._recorder.phase = "check"
            stored = match.tokens or request.sequences[0].num_computed_tokens
            reason = ev.Reason(
                "returns" if returning else "fits",
                {"hit": match.tokens, "of": len(request.sequences[0].token_ids)},
            )
            fields = (request.request_id, stored, queried, match.tokens, returning)
            self._recorder.emit(ev.RequestAdmitted, _HERE + "_admit", reason, *fields)
        if match.tokens:
            request.sequences[0].num_computed_tokens = match.tokens

    # ------------------------------------------------------------ why one waits

    def _defer_to_budget(self, request: Request) -> None:
        self._defer(request, ev.Reason("budget", {"budget": self.config.max_num_batched_tokens}))

    def _defer_to_memory(self, request: Request, match: PrefixMatch, keep_free: int) -> None:
        if self._recorder is not None:
            why = self.manager.shortage(request, match, keep_free)
            self._defer(request, why.reason, why.need, why.free, why.largest)

    def _defer(
        self, request: Request, reason: ev.Reason, need: int = 0, free: int = 0, largest: int = 0
    ) -> None:
        """Tells why the first in line waits, unless that was the last thing told of it."""
        if self._recorder is None:
            return
        # Free blocks change with every step; free regions only when somebody comes or goes.
        moves = (free, largest) if self.config.is_contiguous else ()
        told = (request.request_id, reason.code, *moves)
        if told != self._deferred:
            self._deferred = told
            self._recorder.phase = "check"
            fields = (request.request_id, need, free, largest)
            self._recorder.emit(ev.RequestDeferred, _HERE + "_defer", reason, *fields)

    def _waits_no_more(self, request: Request) -> None:
        if self._deferred and self._deferred[0] == request.request_id:
            self._deferred = ()

    # ------------------------------------------------------------- preemption

    def _preempt(self, victim: Request, step: Step) -> None:
        """Takes a running request's memory: swap for a group in "paper", else recompute."""
        self._unschedule(victim, step)
        mode = self._preemption_mode(victim)
        if mode == "swap" and not self.manager.can_swap_out(victim.sequences):
            self._give_up(victim, step)
            return
        self.running.remove(victim)
        victim.num_preemptions += 1
        self.num_preemptions += 1
        step.preempted.append(victim)
        self._phase("allocate")
        if mode == "swap":
            self._swap_out(victim, step)
        else:
            self._recompute(victim)

    def _preemption_mode(self, victim: Request) -> Literal["recompute", "swap"]:
        if len(victim.sequences) > 1:  # its sequences share blocks that a recompute can't restore
            return "swap"
        wanted = self.config.preemption == "swap"
        return "swap" if wanted and self.manager.can_swap_out(victim.sequences) else "recompute"

    def _recompute(self, victim: Request) -> None:
        victim.transition_to(Status.PREEMPTED)
        seq = victim.sequences[0]
        self._report_preempted(victim, "recompute", seq.num_computed_tokens)
        self.manager.release(seq)
        seq.num_computed_tokens = 0
        self.waiting.put_back(victim)

    def _give_up(self, victim: Request, step: Step) -> None:
        """Ends a group that can neither be kept nor swapped out."""
        reason = ev.Reason("no_swap_space", {"host_blocks": self.config.num_host_blocks})
        victim.error = sentence("error.no_swap_space", "en", **reason.values)
        step.failed.append(victim)
        self.finish(victim, "error", reason)

    def _swap_out(self, victim: Request, step: Step) -> None:
        self._report_preempted(victim, "swap", 0)
        pairs = self.manager.swap_out(victim.request_id, victim.sequences)
        step.swap_out.extend((step.undone.get(block, block), host) for block, host in pairs)
        victim.transition_to(Status.SWAPPED)
        self.swapped.append(victim)

    def _unschedule(self, victim: Request, step: Step) -> None:
        """Takes back what this step had already given to the victim."""
        items = step.scheduled.pop(victim.request_id, [])
        for item in items:  # what was sealed for this step will not be written
            self.manager.forget_unwritten(item.seq)
        step.budget += sum(item.num_tokens for item in items)
        # A swap-out comes first: what a dropped copy would have brought is still at its source.
        for source, destination in step.copies.pop(victim.request_id, ()):
            step.undone[destination] = source

    # -------------------------------------------------------------- finishing

    def finish(self, request: Request, finish_reason: FinishReason, reason: ev.Reason) -> None:
        """Ends a request in any state; everything that it holds goes back to the pool."""
        self._phase("free")
        for seq in list(request.sequences):
            self.finish_sequence(seq, finish_reason)
        self._give_back_rest(request)
        for queue in (self.running, self.swapped, self.waiting):
            if request in queue:
                queue.remove(request)
        self._waits_no_more(request)
        request.finish_reason = finish_reason
        request.transition_to(Status.FINISHED)
        if self._recorder is not None:
            fields = (request.request_id, finish_reason)
            self._recorder.emit(ev.RequestFinished, _HERE + "finish", reason, *fields)

    def finish_sequence(self, seq: Sequence, finish_reason: FinishReason) -> None:
        """Ends one sequence and releases its blocks; its request goes on."""
        request = seq.request
        seq.finish_reason = finish_reason
        request.sequences.remove(seq)
        request.finished.append(seq)
        if self._recorder is not None:
            fields = (seq.seq_id, finish_reason, seq.num_output_tokens)
            at = _HERE + "finish_sequence"
            self._recorder.emit(ev.SequenceFinished, at, ev.Reason(finish_reason), *fields)
        self._give_back(seq)
        self.manager.release_host(seq)

    def _give_back(self, seq: Sequence) -> None:
        """Releases what a finished sequence holds."""
        self.manager.release(seq)

    def _give_back_rest(self, request: Request) -> None:
        """Releases what a finished request holds beside its sequences."""
        self.manager.release_request(request)

    # -------------------------------------------------------------- reporting

    def _width(self, request: Request) -> int:
        """Sequences that the request can hold at once."""
        return request.params.num_sequences if self.config.semantics == "paper" else 1

    def _num_sequences(self) -> int:
        if self.config.semantics == "v1":
            return len(self.running)
        return sum(map(self._width, self.running))

    def _phase(self, phase: ev.Phase) -> None:
        if self._recorder is not None:
            self._recorder.phase = phase

    def _report_scheduled(self, plan: SlotPlan, tokens: int, function: str) -> None:
        assert self._recorder is not None
        self._recorder.phase = "check"
        kind = "decode" if _is_decode(plan.seq, tokens) else "prefill"
        self._recorder.emit(
            ev.RequestScheduled, _HERE + function, self._why_scheduled(plan, tokens, kind),
            plan.seq.seq_id, tokens, kind, plan.stored,
        )  # fmt: skip
        self._recorder.phase = "allocate"

    def _why_scheduled(self, plan: SlotPlan, tokens: int, kind: str) -> ev.Reason:
        if kind == "prefill":
            known = len(plan.seq.token_ids)
            code = "last_chunk" if plan.stored + tokens == known else "chunk"
            return ev.Reason(code, {"end": plan.stored + tokens, "of": known})
        return self.manager.why_decode(plan)

    def _report_preempted(self, victim: Request, mode: str, tokens: int) -> None:
        if self._recorder is None:
            return
        free = self.manager.occupancy.free
        reason = ev.Reason(mode, {"free": free, "policy": self.config.policy})
        fields = (victim.request_id, mode, self.manager.num_held(victim.sequences), tokens)
        self._recorder.emit(ev.RequestPreempted, _HERE + "_preempt", reason, *fields)


def _is_decode(seq: Sequence, tokens: int) -> bool:
    return tokens == 1 and seq.num_output_tokens > 0 and _is_last(seq)


def _is_last(seq: Sequence) -> bool:
    return seq.num_computed_tokens == len(seq.token_ids) - 1
