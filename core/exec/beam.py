"""Beam search: which continuations live on, which are finished, and when to stop.

It follows `transformers.generate(num_beams=k, do_sample=False)` decision for decision, rounding
scores to float32 as it does. It owns one request's finished scores; it does not know blocks,
logits or text, and loads no torch: the caller forks and drops sequences and appends the tokens.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from core.request import SeqId
from core.sched.output import Candidate

__all__ = ["BeamDecision", "BeamSearch", "Continuation", "FinishedBeam", "rank_finished"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Continuation:
    """A beam that lives on: `parent` with `token_id` appended."""

    parent: SeqId
    token_id: int
    cumulative_logprob: float


@dataclass(frozen=True, slots=True)
class FinishedBeam:
    """A beam that ended with `token_id`; `score` is what finished beams are ranked by."""

    parent: SeqId
    token_id: int
    cumulative_logprob: float
    score: float


@dataclass(frozen=True, slots=True)
class BeamDecision:
    """What one step does to a request's beams.

    Attributes:
        continuations: best first; empty when `done`.
        finished: new finished beams that are among the best so far, best first.
        done: the search is over.
    """

    continuations: tuple[Continuation, ...]
    finished: tuple[FinishedBeam, ...]
    done: bool


class BeamSearch:
    """The state of one request's search.

    Args:
        width: beams that live at once.
        max_tokens: length at which every beam ends.
        eos_token_ids: tokens that end a beam; empty when they are to be ignored.
        length_penalty: finished beams rank by logprob / length ** length_penalty.
        early_stopping: stop as soon as `width` beams are finished.
    """

    def __init__(
        self,
        *,
        width: int,
        max_tokens: int,
        eos_token_ids: Iterable[int],
        length_penalty: float = 1.0,
        early_stopping: bool = False,
    ) -> None:
        self.width = width
        self._max_tokens = max_tokens
        self._eos = frozenset(eos_token_ids)
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping
        self._num_tokens = 0
        self._scores: list[float] = []  # the best finished ones, at most `width`, best first

    @property
    def num_candidates(self) -> int:
        """Continuations to look at in each step: enough for `width` that don't end a beam."""
        return max(2, 1 + len(self._eos)) * self.width

    def advance(
        self,
        live: Sequence[tuple[SeqId, float]],
        candidates: Mapping[SeqId, tuple[Candidate, ...]],
    ) -> BeamDecision:
        """Chooses among the continuations of all live beams.

        Args:
            live: the beams with their cumulative log-probabilities, best first.
            candidates: each beam's likeliest continuations.
        """
        self._num_tokens += 1
        at_limit = self._num_tokens >= self._max_tokens
        ranked = self._ranked(live, candidates)
        ends = [at_limit or item.token_id in self._eos for item in ranked]
        finished = self._finish(
            item for item, end in zip(ranked[: self.width], ends, strict=False) if end
        )
        continuations = [item for item, end in zip(ranked, ends, strict=True) if not end]
        done = not continuations or self._is_over(continuations[0].cumulative_logprob)
        return BeamDecision(
            continuations=() if done else tuple(continuations[: self.width]),
            finished=finished,
            done=done,
        )

    def _ranked(
        self,
        live: Sequence[tuple[SeqId, float]],
        candidates: Mapping[SeqId, tuple[Candidate, ...]],
    ) -> list[Continuation]:
        """The best continuations over all beams; ties go to the earlier beam and smaller token."""
        scored = [
            (-_float32(total + item.logprob), place, item.token_id, seq_id)
            for place, (seq_id, total) in enumerate(live)
            for item in candidates[seq_id]
        ]
        scored.sort()
        return [
            Continuation(seq_id, token_id, -negative)
            for negative, _, token_id, seq_id in scored[: self.num_candidates]
        ]

    def _finish(self, ending: Iterable[Continuation]) -> tuple[FinishedBeam, ...]:
        """Takes in the ending beams that are good enough to stay among the best `width`."""
        if self._early_stopping and len(self._scores) == self.width:
            return ()
        length = self._num_tokens**self._length_penalty
        found = [
            FinishedBeam(
                parent=item.parent,
                token_id=item.token_id,
                cumulative_logprob=item.cumulative_logprob,
                score=_float32(item.cumulative_logprob / length),
            )
            for item in ending
        ]
        # Sorting is stable and the older scores come first, so an older beam wins a tie.
        merged: list[tuple[float, FinishedBeam | None]] = [(score, None) for score in self._scores]
        merged += [(beam.score, beam) for beam in found]
        kept = sorted(merged, key=lambda pair: -pair[0])[: self.width]
        self._scores = [score for score, _ in kept]
        return tuple(beam for _, beam in kept if beam is not None)

    def _is_over(self, best_live: float) -> bool:
        """Whether `width` beams are finished and, by estimate, no live one can beat the worst."""
        if len(self._scores) < self.width:
            return False
        if self._early_stopping:
            return True
        best_possible = _float32(best_live / self._num_tokens**self._length_penalty)
        return best_possible <= self._scores[-1]


def rank_finished(beams: Iterable[tuple[_T, float]], width: int) -> list[_T]:
    """The best `width` of all beams that ever finished, best first; the earlier wins a tie.

    >>> rank_finished([("a", -1.0), ("b", -0.5), ("c", -2.0)], 2)
    ['b', 'a']
    """
    ordered = sorted(beams, key=lambda beam: -beam[1])
    return [beam for beam, _ in ordered[:width]]


def _float32(value: float) -> float:
    """The nearest float32: transformers adds log-probabilities in that precision."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded
