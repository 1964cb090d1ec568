"""What the scheduler decides and what the runner answers: the two values of one step."""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Literal

from core.request import Request, SeqId, Sequence

__all__ = ["Candidate", "Sampled", "ScheduledSequence", "SchedulerOutput", "StepResult"]


@dataclass(slots=True)
class ScheduledSequence:
    """One sequence's part of a step; nobody changes it.

    NOTE: not frozen, because one is made for every token and freezing doubles what that costs.

    Attributes:
        start: tokens already stored; this step computes positions start .. start + num_tokens - 1.
        block_ids: the block table, long enough for those positions.
        samples: whether the last position's logits are sampled (its known tokens end here).
    """

    seq: Sequence
    phase: Literal["prefill", "decode"]
    start: int
    num_tokens: int
    block_ids: SequenceOf[int]
    samples: bool


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step's decisions, in the order in which the memory must be touched.

    `swap_out` (device block, host block) first, then `swap_in` (host block, device block), then
    `copies` (source block, destination block), then the forward over `scheduled`.

    Attributes:
        preempted: requests that gave up their memory and will come back.
        failed: requests that had to end, because there was nowhere to keep what they had.
        copied: requests that wait for `copies` though none of their tokens may be scheduled.
    """

    step: int
    scheduled: tuple[ScheduledSequence, ...]
    copies: tuple[tuple[int, int], ...] = ()
    swap_out: tuple[tuple[int, int], ...] = ()
    swap_in: tuple[tuple[int, int], ...] = ()
    admitted: tuple[Request, ...] = ()
    preempted: tuple[Request, ...] = ()
    failed: tuple[Request, ...] = ()
    copied: tuple[Request, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(item.num_tokens for item in self.scheduled)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One chosen token; `top` are the likeliest alternatives as (token, log-probability)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """One possible continuation of a beam: log-probability of the token alone."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the runner answers.

    Attributes:
        samples: for each sampled sequence its token; for the first token of a request with n > 1
            samples and one sequence, n tokens (sample_index 0 .. n - 1) from the same logits.
        candidates: for each sequence of a beam search its 2 x beam_width likeliest continuations,
            best first (ties: smaller token id first).
        timings: seconds by part ("forward", "sample").
        memory: bytes by part, as far as the runner knows ("kv_pool", "weights", "process").
    """

    samples: Mapping[SeqId, tuple[Sampled, ...]] = field(default_factory=dict)
    candidates: Mapping[SeqId, tuple[Candidate, ...]] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
