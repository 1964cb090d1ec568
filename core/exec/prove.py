"""Proof that two memories give the same answers: equal tokens, and how far the logits lie apart.

It plays the same workload again in each memory with a tap on the runner's logits, keeps the rows
of the first run, and compares the others' rows as they come. Rows are compared only where both
sequences hold the same tokens so far: behind a different token everything differs.

It owns the kept rows, within a bound of bytes; what was left out is counted. It does not know why
rows differ, only by how much, and how close the two best tokens were.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from core.engine import Engine
from core.exec.runner import OnLogits
from core.request import Sequence as TokenSequence
from core.trace.trace import Trace
from core.workload.compare import Equality, equal_tokens
from core.workload.scenario import Joining, play

__all__ = ["Proof", "Rows", "Subject", "Witness", "prove"]

_MAX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Rows:
    """What the logits of two runs say of each other.

    Attributes:
        compared: rows with the same tokens before them in both runs.
        apart: rows not compared, because a token before them differs already.
        beyond: rows not compared, because the bound of bytes was met.
        identical: rows equal bit for bit.
        largest: the largest difference of one logit, at `label` and `position`.
        margin: where the tokens differ first, how far the first run's best two logits lie apart.
        nudge: and the largest difference of a logit there; None when no compared row is there.
    """

    compared: int
    apart: int
    beyond: int
    identical: int
    largest: float
    label: str
    position: int
    margin: float | None = None
    nudge: float | None = None

    @property
    def rounding_explains(self) -> bool:
        """Whether moving two logits by `nudge` each could turn the choice."""
        return self.margin is not None and self.nudge is not None and self.margin <= 2 * self.nudge


@dataclass(frozen=True, slots=True)
class Proof:
    """One run against the first: their tokens and their logits.

    Attributes:
        steps: of the two runs, which batch the same tokens in their own ways.
        is_whole: False when it was stopped before the end.
    """

    equality: Equality
    rows: Rows
    steps: tuple[int, int]
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Subject:
    """One memory to prove: how its engine is made, and what it plays."""

    build: Callable[[OnLogits], Engine]
    arrivals: Sequence[Joining]


def prove(
    subjects: Sequence[Subject],
    *,
    max_bytes: int = _MAX_BYTES,
    keep_going: Callable[[int, int], bool] = lambda run, step: True,
) -> list[Proof]:
    """Plays every subject and compares each with the first.

    Args:
        subjects: two or more.
        max_bytes: of the rows that are kept.
        keep_going: told the run (from 0) and its step; False ends the proof early.
    """
    witness = Witness(max_bytes)
    traces: list[Trace] = []
    proofs: list[Proof] = []
    for number, subject in enumerate(subjects):
        seen = _Seen()
        tap = witness.keep if number == 0 else witness.tap(seen)
        engine = subject.build(tap)
        whole = all(keep_going(number, record.step) for record in play(engine, subject.arrivals))
        traces.append(engine.trace())
        if number:
            proofs.append(_proof(traces[0], traces[-1], witness, seen, whole))
        if not whole:
            break
    return proofs


def _proof(left: Trace, right: Trace, witness: "Witness", seen: "_Seen", whole: bool) -> Proof:
    equality = equal_tokens(left, right)
    margin = nudge = None
    if equality.first is not None:
        place = equality.first.seq_id, equality.first.position
        margin, nudge = witness.margin(place), seen.differences.get(place)
    rows = Rows(
        seen.compared, seen.apart, seen.beyond, seen.identical, seen.largest, seen.label,
        seen.position, margin, nudge,
    )  # fmt: skip
    return Proof(equality, rows, (left.num_steps, right.num_steps), whole)


Place = tuple[str, int]  # a sequence's id, and the position that its next token will have


class _Seen:
    """What one run's rows showed so far."""

    def __init__(self) -> None:
        self.compared = self.apart = self.beyond = self.identical = 0
        self.largest, self.label, self.position = 0.0, "", -1
        self.differences: dict[Place, float] = {}


class Witness:
    """The first run's rows, by sequence and position.

    Args:
        max_bytes: rows past it are counted, not kept.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._rows: dict[Place, tuple[int, Tensor]] = {}
        self._left_out: set[Place] = set()

    def keep(self, sequences: tuple[TokenSequence, ...], logits: Tensor) -> None:
        """The tap of the first run."""
        for place, past, row in _each(sequences, logits):
            small = _smallest(row)
            size = small.element_size() * small.nelement()
            if self._bytes + size > self._max_bytes:
                self._left_out.add(place)
                continue
            self._bytes += size
            self._rows[place] = past, small

    def tap(self, seen: _Seen) -> OnLogits:
        """The tap of another run."""

        def look(sequences: tuple[TokenSequence, ...], logits: Tensor) -> None:
            for sequence, (place, past, row) in zip(
                sequences, _each(sequences, logits), strict=True
            ):
                self._look(seen, sequence, place, past, row)

        return look

    def margin(self, place: Place) -> float | None:
        """How far the best two logits of a kept row lie apart."""
        if place not in self._rows:
            return None
        best, second = self._rows[place][1].float().topk(2).values.tolist()
        return float(best - second)

    def _look(
        self, seen: _Seen, sequence: TokenSequence, place: Place, past: int, row: Tensor
    ) -> None:
        kept = self._rows.get(place)
        if kept is None:
            seen.beyond += place in self._left_out
            seen.apart += place not in self._left_out
            return
        if kept[0] != past:
            seen.apart += 1
            return
        difference = float((row - kept[1].float()).abs().max())
        seen.compared += 1
        seen.identical += difference == 0.0
        seen.differences[place] = difference
        if difference > seen.largest or not seen.label:
            label = sequence.request.label
            seen.largest, seen.label, seen.position = difference, label, place[1]


def _each(
    sequences: Iterable[TokenSequence], logits: Tensor
) -> Iterable[tuple[Place, int, Tensor]]:
    """For each row its place, a fingerprint of the tokens before it, and a copy on the CPU."""
    rows = logits.detach().to("cpu", torch.float32)
    for sequence, row in zip(sequences, rows, strict=True):
        place = str(sequence.seq_id), len(sequence.token_ids)
        yield place, hash(tuple(sequence.token_ids)), row


def _smallest(row: Tensor) -> Tensor:
    """The row in half the bytes where that loses nothing: a bfloat16 model's logits."""
    half = row.bfloat16()
    return half if torch.equal(half.float(), row) else row.clone()
