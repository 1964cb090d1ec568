"""Requests, their sequences, and the legal moves between states.

A request is what a user asked for; a sequence is one line of tokens with one block table. In "v1"
every request has one sequence (parallel samples are separate requests, as in vLLM v1); in "paper"
semantics a request owns several sequences that share blocks.

This module does not know blocks, the scheduler or the model.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NewType

from core.checks import check_number, check_switch
from core.errors import ConfigError, InvariantError

__all__ = ["FinishReason", "Request", "SamplingParams", "SeqId", "Sequence", "Status"]

SeqId = NewType("SeqId", str)
FinishReason = Literal["stop", "length", "abort", "rejected", "error"]


class Status(StrEnum):
    """States of a request, in vLLM's words."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    SWAPPED = "swapped"
    FINISHED = "finished"


_LEGAL = {
    Status.WAITING: {Status.RUNNING, Status.FINISHED},
    Status.RUNNING: {Status.PREEMPTED, Status.SWAPPED, Status.FINISHED},
    Status.PREEMPTED: {Status.RUNNING, Status.FINISHED},
    Status.SWAPPED: {Status.RUNNING, Status.FINISHED},
    Status.FINISHED: set(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a request's tokens are chosen.

    `temperature` 0 is greedy, and so is one below 1e-5, which would overflow (as in vLLM).
    `top_k` 0 and `top_p` 1 mean no limit. `logprobs` is the number of alternatives to report
    beside each token; None reports nothing. `beam_width` 1 is no beam search; a wider one ignores
    temperature, and ranks finished beams by
    sum of log-probabilities / length ** `length_penalty`.

    Raises:
        ConfigError: a value of another kind or out of range, or beams combined with samples.
    """

    max_tokens: int = 64
    n: int = 1
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    beam_width: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self) -> None:
        for name, (low, high) in _PARAM_RANGES.items():
            if getattr(self, name) is not None or name not in _OPTIONAL:
                check_number(name, getattr(self, name), low, high)
        check_switch("ignore_eos", self.ignore_eos)
        check_switch("early_stopping", self.early_stopping)
        if self.beam_width > 1 and self.n > 1:
            raise ConfigError("beams_and_samples")
        if not isinstance(self.stop, tuple) or not all(isinstance(t, str) for t in self.stop):
            raise ConfigError("stop_texts", value=self.stop)
        if any(not text for text in self.stop):
            raise ConfigError("empty_stop")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature < _GREEDY_BELOW

    @property
    def num_sequences(self) -> int:
        """Lines of tokens that the request can hold at once."""
        return max(self.n, self.beam_width)


_OPTIONAL = {"seed", "logprobs"}
_GREEDY_BELOW = 1e-5
_PARAM_RANGES: dict[str, tuple[float, float]] = {
    "max_tokens": (1, 1 << 20),
    "n": (1, 64),
    "temperature": (0.0, 100.0),
    "top_k": (0, 1 << 20),
    "top_p": (1e-9, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-3, 100.0),
    "seed": (0, (1 << 63) - 1),
    "logprobs": (0, 100),
    "beam_width": (1, 32),
    "length_penalty": (-10.0, 10.0),
}


@dataclass(slots=True, eq=False)
class Sequence:
    """One line of tokens.

    Attributes:
        token_ids: prompt and output; grows by one a step.
        num_computed_tokens: tokens whose K and V are stored; chases len(token_ids).
        block_hashes: hashes of the full blocks so far, filled on demand by `core.cache.hashing`.
        sample_index: which of the request's samples this is; seeds its random numbers.
        texts: text that each output token completed, "" while a character is unfinished.
        text_end: characters of the text to keep, when a stop string ended it.
    """

    seq_id: SeqId
    request: "Request"
    token_ids: list[int]
    num_prompt_tokens: int
    sample_index: int = 0
    num_computed_tokens: int = 0
    block_hashes: list[bytes] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    text_end: int | None = None
    finish_reason: FinishReason | None = None

    @property
    def output_token_ids(self) -> list[int]:
        """Generated tokens."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        """Count of generated tokens."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def text(self) -> str:
        """Generated text, without the stop string that ended it."""
        return "".join(self.texts)[: self.text_end]

    def fork(self, seq_id: SeqId, sample_index: int) -> "Sequence":
        """A new sequence with the same history; it shares no mutable state with this one."""
        return Sequence(
            seq_id=seq_id,
            request=self.request,
            token_ids=self.token_ids.copy(),
            num_prompt_tokens=self.num_prompt_tokens,
            sample_index=sample_index,
            num_computed_tokens=self.num_computed_tokens,
            block_hashes=self.block_hashes.copy(),
            cumulative_logprob=self.cumulative_logprob,
            logprobs=self.logprobs.copy(),
            top_logprobs=self.top_logprobs.copy(),
            texts=self.texts.copy(),
        )


@dataclass(slots=True, eq=False)
class Request:
    """What a user asked for.

    Attributes:
        sequences: live lines of tokens; finished ones move to `finished`.
        num_preemptions: how often its memory was taken away.
        prompt: the text, when there was one.
        label: a short display name, such as "A".
        num_forks: sequences made so far beyond the first; names the next one.
        parent_id: the request of which this is one sample ("v1" semantics), else None.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    arrival: float = 0.0
    priority: int = 0
    cache_salt: str | None = None
    prompt: str | None = None
    parent_id: str | None = None
    label: str = ""
    num_forks: int = 0
    status: Status = Status.WAITING
    sequences: list[Sequence] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None

    @classmethod
    def make(
        cls,
        request_id: str,
        prompt_token_ids: SequenceOf[int],
        params: SamplingParams,
        *,
        arrival: float = 0.0,
        priority: int = 0,
        cache_salt: str | None = None,
        prompt: str | None = None,
        parent_id: str | None = None,
        label: str = "",
        sample_index: int = 0,
    ) -> "Request":
        """A waiting request with its first sequence, which bears the request's own id."""
        request = cls(
            request_id=request_id,
            prompt_token_ids=tuple(prompt_token_ids),
            params=params,
            arrival=arrival,
            priority=priority,
            cache_salt=cache_salt,
            prompt=prompt,
            parent_id=parent_id,
            label=label or request_id,
        )
        first = Sequence(
            seq_id=SeqId(request_id),
            request=request,
            token_ids=list(prompt_token_ids),
            num_prompt_tokens=len(request.prompt_token_ids),
            sample_index=sample_index,
        )
        request.sequences.append(first)
        return request

    def transition_to(self, status: Status) -> None:
        """Moves to `status`.

        Raises:
            InvariantError: the move is not legal.
        """
        if status not in _LEGAL[self.status]:
            raise InvariantError(f"request {self.request_id}: {self.status} -> {status}")
        self.status = status
