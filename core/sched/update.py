"""What happens after the forward: tokens are stored, chosen, forked, finished and freed.

The three phases "write", "sample" and "free" of a step. It owns the beam searches in progress; it
does not know logits (the runner has chosen) or tensors. Text comes from a `TextSource`, because
stop strings end a sequence by what it says, not by what it is.
"""

from collections import Counter
from collections.abc import Collection
from typing import Protocol

from core.exec.beam import BeamDecision, BeamSearch, Continuation, FinishedBeam, rank_finished
from core.request import FinishReason, Request, SeqId, Sequence
from core.sched.output import Sampled, ScheduledSequence, SchedulerOutput, StepResult
from core.sched.scheduler import Scheduler
from core.trace import events as ev
from core.trace.recorder import Recorder

__all__ = ["StepUpdate", "TextSource"]

_HERE = "core/sched/update.py:"
_REASONS: dict[str, ev.Reason] = {
    name: ev.Reason(name) for name in ("stop", "length", "best_beams", "sampled")
}


class TextSource(Protocol):
    """Turns tokens into text, one stream a sequence."""

    def push(self, seq: Sequence, token_id: int) -> str:
        """The text that the token completes."""

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """The child's stream goes on from the parent's."""

    def drop(self, seq: Sequence) -> str:
        """The sequence is over; the text that was held back, if any."""


class StepUpdate:
    """Carries a step's results into the scheduler's requests.

    Args:
        eos_token_ids: tokens that end a sequence, unless the request ignores them.
        texts: where text comes from.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        recorder: Recorder | None,
        texts: TextSource,
        eos_token_ids: Collection[int],
    ) -> None:
        self._scheduler = scheduler
        self._manager = scheduler.manager
        self._recorder = recorder
        self._texts = texts
        self._eos = frozenset(eos_token_ids)
        self._beams: dict[str, BeamSearch] = {}
        self._beam_scores: dict[SeqId, float] = {}

    def apply(self, output: SchedulerOutput, result: StepResult) -> list[Request]:
        """Stores, samples and frees; returns the requests that finished."""
        self._phase("write")
        for item in output.scheduled:
            self._store(item)
        self._phase("sample")
        grown: list[Sequence] = []
        searching: dict[str, Request] = {}
        for item in output.scheduled:
            if item.samples and item.seq.request.params.beam_width > 1:
                searching[item.seq.request.request_id] = item.seq.request
            elif item.samples:
                samples = result.samples[item.seq.seq_id]
                if len(samples) == 1:
                    self._append(item.seq, samples[0])
                    grown.append(item.seq)
                else:
                    grown.extend(self._append_samples(item.seq, samples))
        over = [request for request in searching.values() if self._advance_beams(request, result)]
        self._phase("free")
        ended = [(seq, reason) for seq in grown if (reason := self._finish_reason(seq))]
        for seq, finish_reason in ended:
            self._finish(seq, finish_reason)
        for request in over:
            self._finish_search(request)
        if not ended and not over:
            return []
        touched = {item.seq.request.request_id: item.seq.request for item in output.scheduled}
        return [request for request in touched.values() if request.finish_reason is not None]

    def abandon(self, request: Request) -> None:
        """Forgets a request that ended outside `apply` (aborted or failed)."""
        self._beams.pop(request.request_id, None)
        for seq in request.finished:
            self._texts.drop(seq)
            self._beam_scores.pop(seq.seq_id, None)

    # ------------------------------------------------------------------ write

    def _store(self, item: ScheduledSequence) -> None:
        seq = item.seq
        if self._recorder is not None:
            self._report_written(item)
        seq.num_computed_tokens = item.start + item.num_tokens
        self._manager.seal_written(seq)

    def _report_written(self, item: ScheduledSequence) -> None:
        assert self._recorder is not None
        reason = ev.Reason(item.phase + self._manager.suffix)
        for block, offset, start, stop in self._manager.places(
            item.seq, item.start, item.num_tokens
        ):
            self._recorder.emit(
                ev.SlotsWritten, _HERE + "_store", reason, item.seq.seq_id, block, offset,
                tuple(item.seq.token_ids[start:stop]),
            )  # fmt: skip

    # ----------------------------------------------------------------- sample

    def _append_samples(self, seq: Sequence, samples: tuple[Sampled, ...]) -> list[Sequence]:
        """Appends a token to the sequence; further samples fork it first."""
        children = [self._fork(seq, shares_blocks=True) for _ in samples[1:]]
        family = [seq, *children]
        for member, sampled in zip(family, samples, strict=True):
            self._append(member, sampled)
        return family

    def _fork(self, parent: Sequence, *, shares_blocks: bool) -> Sequence:
        request = parent.request
        request.num_forks += 1
        child = parent.fork(SeqId(f"{request.request_id}.{request.num_forks}"), request.num_forks)
        request.sequences.append(child)
        self._texts.fork(parent, child)
        if self._recorder is not None:
            label = f"{request.label.partition('·')[0]}·{request.num_forks + 1}"
            fields = (request.request_id, parent.seq_id, child.seq_id, label)
            kind = "beam" if request.params.beam_width > 1 else "sample"
            reason = ev.Reason(kind + self._manager.suffix)
            self._recorder.emit(ev.SequenceForked, _HERE + "_fork", reason, *fields)
        if shares_blocks:
            self._manager.fork(parent, child)
        return child

    def _append(self, seq: Sequence, sampled: Sampled) -> None:
        seq.token_ids.append(sampled.token_id)
        seq.cumulative_logprob += sampled.logprob
        if seq.request.params.logprobs is not None:
            seq.logprobs.append(sampled.logprob)
            seq.top_logprobs.append(sampled.top)
        text = self._texts.push(seq, sampled.token_id)
        seq.texts.append(text)
        if self._recorder is not None:
            fields = (seq.seq_id, sampled.token_id, text, round(sampled.logprob, 6))
            self._recorder.emit(ev.TokenSampled, _HERE + "_append", _REASONS["sampled"], *fields)

    # ------------------------------------------------------------------ beams

    def _advance_beams(self, request: Request, result: StepResult) -> bool:
        """One step of a beam search; whether it is over."""
        search = self._beams.get(request.request_id) or self._begin_search(request)
        order = {seq.seq_id: seq for seq in request.sequences}
        live = [(seq_id, seq.cumulative_logprob) for seq_id, seq in order.items()]
        decision = search.advance(live, result.candidates)
        for beam in decision.finished:
            self._keep_finished(order[beam.parent], beam)
        if not decision.done:
            self._continue_beams(request, order, decision)
        return decision.done

    def _begin_search(self, request: Request) -> BeamSearch:
        params = request.params
        prompt = len(request.prompt_token_ids)
        search = BeamSearch(
            width=params.beam_width,
            max_tokens=min(params.max_tokens, self._scheduler.max_model_len - prompt),
            eos_token_ids=() if params.ignore_eos else self._eos,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
        )
        self._beams[request.request_id] = search
        return search

    def _keep_finished(self, parent: Sequence, beam: FinishedBeam) -> None:
        """A finished beam is a fork that never owns a block: its tokens are all that is left."""
        child = self._fork(parent, shares_blocks=False)
        self._append_beam(child, beam.token_id, beam.cumulative_logprob)
        self._beam_scores[child.seq_id] = beam.score
        eos = beam.token_id in self._eos and not parent.request.params.ignore_eos
        self._finish_sequence(child, "stop" if eos else "length")

    def _continue_beams(
        self, request: Request, order: dict[SeqId, Sequence], decision: BeamDecision
    ) -> None:
        """Drops beams without a continuation, forks those with several, appends the tokens."""
        wanted = Counter(item.parent for item in decision.continuations)
        for seq_id, seq in order.items():
            if seq_id not in wanted:
                self._drop(seq)
        # Fork from parents while they are still as they were, then append to all.
        family: list[tuple[Sequence, Continuation]] = []
        seen: set[SeqId] = set()
        for item in decision.continuations:
            parent = order[item.parent]
            first = item.parent not in seen
            family.append((parent if first else self._fork(parent, shares_blocks=True), item))
            seen.add(item.parent)
        for seq, item in family:
            self._append_beam(seq, item.token_id, item.cumulative_logprob)
        request.sequences[:] = [seq for seq, _ in family]  # best first, as the search wants them

    def _append_beam(self, seq: Sequence, token_id: int, total: float) -> None:
        self._append(seq, Sampled(token_id, total - seq.cumulative_logprob))
        seq.cumulative_logprob = total  # as the search rounded it

    def _drop(self, seq: Sequence) -> None:
        seq.request.sequences.remove(seq)
        self._texts.drop(seq)
        if self._recorder is not None:
            reason = ev.Reason("lost" + self._manager.suffix)
            self._recorder.emit(ev.SequenceDropped, _HERE + "_drop", reason, seq.seq_id)
        self._manager.drop(seq)

    def _finish_search(self, request: Request) -> None:
        """Ends a search: the live beams lost, the best finished ones are the answer."""
        for seq in list(request.sequences):
            self._drop(seq)
        scored = [(seq, self._beam_scores.pop(seq.seq_id)) for seq in request.finished]
        request.finished[:] = rank_finished(scored, request.params.beam_width)
        del self._beams[request.request_id]
        reason = request.finished[0].finish_reason or "length"
        self._scheduler.finish(request, reason, _REASONS["best_beams"])

    # ------------------------------------------------------------------- free

    def _finish_reason(self, seq: Sequence) -> FinishReason | None:
        params = seq.request.params
        if params.stop and self._stops_at_text(seq):
            return "stop"
        if seq.token_ids[-1] in self._eos and not params.ignore_eos:
            return "stop"
        known = len(seq.token_ids)
        if known - seq.num_prompt_tokens >= params.max_tokens:
            return "length"
        return "length" if known >= self._scheduler.max_model_len else None

    def _stops_at_text(self, seq: Sequence) -> bool:
        """Whether a stop string is complete; keeps the text before its first occurrence."""
        if not seq.texts[-1]:
            return False
        # Only the end of the text is new: what a stop string could reach back into, and no more.
        reach = len(seq.texts[-1]) + max(map(len, seq.request.params.stop)) - 1
        tail = ""
        for text in reversed(seq.texts):
            if len(tail) >= reach:
                break
            tail = text + tail
        tail = tail[-reach:]
        places = [tail.find(stop) for stop in seq.request.params.stop]
        found = [place for place in places if place >= 0]
        if found:
            seq.text_end = sum(map(len, seq.texts)) - len(tail) + min(found)
        return bool(found)

    def _finish(self, seq: Sequence, finish_reason: FinishReason) -> None:
        request = seq.request
        self._finish_sequence(seq, finish_reason)
        if not request.sequences:
            request.finished.sort(key=lambda done: done.sample_index)
            self._scheduler.finish(request, finish_reason, _REASONS[finish_reason])

    def _finish_sequence(self, seq: Sequence, finish_reason: FinishReason) -> None:
        # A limit can cut a character in two; half of one is never shown.
        held_back = self._texts.drop(seq).rstrip("\N{REPLACEMENT CHARACTER}")
        if held_back and seq.texts:
            seq.texts[-1] += held_back
        self._scheduler.finish_sequence(seq, finish_reason)

    def _phase(self, phase: ev.Phase) -> None:
        if self._recorder is not None:
            self._recorder.phase = phase
