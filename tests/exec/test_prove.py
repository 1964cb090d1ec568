"""The proof sees what the sampler sees: equal rows are equal, another token is weighed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from core.config import EngineConfig
from core.engine import Engine
from core.exec.prove import Subject, prove
from core.exec.runner import ModelRunner
from core.request import SamplingParams
from core.workload.compare import configure
from core.workload.scenario import Arrival
from tests.builders import FakeCodec, make_config
from tests.exec.tiny_models import pair

ARRIVALS = tuple(
    Arrival(text, SamplingParams(max_tokens=tokens, ignore_eos=True), at_step=step)
    for text, tokens, step in [("one two", 8, 1), ("three four five", 12, 1), ("six", 6, 3)]
)
BASE = make_config(num_blocks=33, max_model_len=48)


def subject(loaded: Any, config: EngineConfig) -> Subject:
    def build(tap: Any) -> Engine:
        runner = ModelRunner(loaded, config, on_logits=tap)
        return Engine(config, runner, FakeCodec())

    return Subject(build, ARRIVALS)


def test_two_memories_of_one_model_agree_in_every_row() -> None:
    _, loaded = pair("llama")
    configs = [configure(BASE, name) for name in ("static", "continuous", "paged", "shared")]
    proofs = prove([subject(loaded, config) for config in configs])
    assert len(proofs) == 3
    for proof in proofs:
        assert proof.is_whole and proof.equality.holds and proof.equality.tokens == 26
        assert proof.rows.compared == 26 and proof.rows.apart == proof.rows.beyond == 0
        assert proof.rows.largest < 1e-4


def test_the_same_memory_twice_is_equal_bit_for_bit() -> None:
    _, loaded = pair("llama")
    config = configure(BASE, "paged")
    (proof,) = prove([subject(loaded, config), subject(loaded, config)])
    assert proof.rows.identical == proof.rows.compared == 26 and proof.rows.largest == 0.0


def test_rows_past_the_bound_are_counted_and_not_kept() -> None:
    _, loaded = pair("llama")
    config = configure(BASE, "paged")
    row = loaded.info.vocab_size * 4
    (proof,) = prove([subject(loaded, config)] * 2, max_bytes=10 * row)
    assert 10 <= proof.rows.compared <= 20  # a row may be kept in half the bytes
    assert proof.rows.compared + proof.rows.beyond == 26


def _turned(build: Callable[..., Engine], by: float) -> Callable[[Any], Engine]:
    """An engine whose logits of one row are changed so that another token wins by `by`."""

    def make(tap: Any) -> Engine:
        def turn(sequences: tuple[Any, ...], logits: torch.Tensor) -> None:
            for sequence, row in zip(sequences, logits, strict=True):
                if sequence.seq_id == "B" and sequence.num_output_tokens == 4:
                    best, second = row.topk(2).indices.tolist()
                    row[second] = row[best] + by
            tap(sequences, logits)

        return build(turn)

    return make


@pytest.mark.parametrize("by", [1e-3, 50.0])
def test_another_token_is_found_and_rows_behind_it_are_not_compared(by: float) -> None:
    _, loaded = pair("llama")
    config = configure(BASE, "paged")
    honest = subject(loaded, config)
    (proof,) = prove([honest, Subject(_turned(honest.build, by), ARRIVALS)])
    first = proof.equality.first
    assert first is not None and first.label == "B"
    assert proof.rows.apart == 12 - 5 and proof.rows.compared == 26 - 7
    assert proof.rows.margin is not None and proof.rows.nudge is not None
    assert proof.rows.nudge == pytest.approx(proof.rows.margin + by, rel=1e-3, abs=1e-5)


def test_a_proof_that_is_stopped_says_that_it_is_not_whole() -> None:
    _, loaded = pair("llama")
    config = configure(BASE, "paged")
    (proof,) = prove(
        [subject(loaded, config)] * 2, keep_going=lambda run, step: run == 0 or step < 4
    )
    assert not proof.is_whole and 0 < proof.rows.compared < 26
