"""What tests build: fake runners and codecs, engines, and random workloads.

The fake runner has no model: the next token is a function of the whole sequence before it, so a
schedule, a preemption or a cache hit that loses or mixes tokens shows as a different answer.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.config import EngineConfig
from core.engine import Engine
from core.request import Request, SamplingParams
from core.sched.output import Candidate, Sampled, SchedulerOutput, StepResult

VOCAB = 97
EOS = 1


def next_token(token_ids: Sequence[int], sample: int = 0) -> int:
    """The fake model's choice after `token_ids`."""
    digest = hashlib.blake2b(repr((list(token_ids), sample)).encode(), digest_size=4).digest()
    return 2 + int.from_bytes(digest, "big") % (VOCAB - 2)


def fake_logprobs(token_ids: Sequence[int]) -> list[tuple[int, float]]:
    """Eight likeliest tokens, best first, distinct for distinct pasts."""
    rng = random.Random(repr(list(token_ids)))
    tokens = rng.sample(range(1, VOCAB), 8)
    return [(token, -0.3 * place - rng.random() * 0.2) for place, token in enumerate(tokens)]


@dataclass
class FakeRunner:
    """Answers like a model that sees the whole sequence; checks that its KV would be there.

    `fail_at` makes the forward of that step fail.
    """

    eos_token_ids: frozenset[int] = frozenset({EOS})
    max_model_len: int = 4096
    vocab_size: int = VOCAB
    fail_at: set[int] = field(default_factory=set)
    error: type[BaseException] = RuntimeError
    steps: int = 0

    def execute(self, output: SchedulerOutput) -> StepResult:
        self.steps += 1
        if self.steps in self.fail_at:
            raise self.error("out of memory (a test)")
        samples, candidates = {}, {}
        for item in output.scheduled:
            seq = item.seq
            assert item.start == seq.num_computed_tokens
            if not item.samples:
                continue
            params = seq.request.params
            if params.beam_width > 1:
                top = fake_logprobs(seq.token_ids)
                candidates[seq.seq_id] = tuple(Candidate(t, p) for t, p in top)
                continue
            first = len(seq.request.sequences) == 1 and not seq.num_output_tokens
            indices = range(params.n) if first and params.n > 1 else [seq.sample_index]
            samples[seq.seq_id] = tuple(
                Sampled(next_token(seq.token_ids, index), -0.5) for index in indices
            )
        return StepResult(samples, candidates, {"forward": 0.001}, {"kv_pool": 1})


class FakeCodec:
    """Tokens are letters: id 10 is "k"."""

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        return [ord(letter) % VOCAB for letter in text]

    def pieces(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(chr(97 + token % 26) for token in token_ids)

    def stream(self) -> FakeText:
        return FakeText()


class FakeText:
    def push(self, token_id: int) -> str:
        return chr(97 + token_id % 26)

    def flush(self) -> str:
        return ""

    def copy(self) -> FakeText:
        return FakeText()


def make_config(**changes: Any) -> EngineConfig:
    """A small pool; small blocks."""
    settings: dict[str, Any] = {
        "block_size": 4,
        "num_blocks": 17,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "num_host_blocks": 32,
    }
    return EngineConfig(**{**settings, **changes})


def make_engine(runner: FakeRunner | None = None, *, record: bool = True, **changes: Any) -> Engine:
    return Engine(make_config(**changes), runner or FakeRunner(), FakeCodec(), record=record)


def make_request(
    request_id: str = "A", tokens: Iterable[int] = (1, 2, 3, 4, 5), **changes: Any
) -> Request:
    salt = changes.pop("cache_salt", None)
    return Request.make(request_id, list(tokens), SamplingParams(**changes), cache_salt=salt)


def expected_tokens(prompt: Sequence[int], max_tokens: int, sample: int = 0) -> list[int]:
    """What the fake model answers, computed without any engine."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens, sample))
        if tokens[-1] == EOS:
            break
    return tokens[len(prompt) :]


class SlotMemory:
    """What a GPU would hold: for every slot of every block the history that was stored there.

    A token's K and V depend on all tokens before it, so a slot holds the whole prefix up to its
    token: two slots are equal only when a real cache could swap one for the other.
    """

    def __init__(self, num_blocks: int, block_size: int, num_host_blocks: int) -> None:
        self.block_size = block_size
        self.device: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.host: list[list[int | None]] = [[None] * block_size for _ in range(num_host_blocks)]

    def move(
        self,
        swap_out: Iterable[tuple[int, int]],
        swap_in: Iterable[tuple[int, int]],
        copies: Iterable[tuple[int, int]],
    ) -> None:
        """The three moves before a forward, in the order that SchedulerOutput promises."""
        for block, host in swap_out:
            self.host[host] = self.device[block].copy()
        for host, block in swap_in:
            self.device[block] = self.host[host].copy()
        for source, destination in copies:
            self.device[destination] = self.device[source].copy()

    def write(self, table: Sequence[int], token_ids: Sequence[int], start: int, end: int) -> None:
        """Stores positions start .. end - 1."""
        for position in range(start, end):
            block = table[position // self.block_size]
            self.device[block][position % self.block_size] = _past(token_ids, position)

    def wrong(self, table: Sequence[int], token_ids: Sequence[int], end: int) -> list[int]:
        """Positions below `end` that do not read back what was stored."""
        return [
            position
            for position in range(end)
            if self.device[table[position // self.block_size]][position % self.block_size]
            != _past(token_ids, position)
        ]


def _past(token_ids: Sequence[int], position: int) -> int:
    return hash(tuple(token_ids[: position + 1]))


class MemoryRunner(FakeRunner):
    """A fake runner that keeps every slot and reads each context back through its table."""

    def __init__(self, config: EngineConfig, **settings: Any) -> None:
        super().__init__(**settings)
        self.memory = SlotMemory(*config.storage, config.num_host_blocks)

    def execute(self, output: SchedulerOutput) -> StepResult:
        memory = self.memory
        memory.move(output.swap_out, output.swap_in, output.copies)
        for item in output.scheduled:
            end = item.start + item.num_tokens
            memory.write(item.block_ids, item.seq.token_ids, item.start, end)
        for item in output.scheduled:
            end = item.start + item.num_tokens
            wrong = memory.wrong(item.block_ids, item.seq.token_ids, end)
            assert not wrong, f"step {output.step}: {item.seq.seq_id} reads {wrong} wrongly"
        return super().execute(output)
