"""Filters equal transformers' logits processors; random numbers depend on nothing but the row."""

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from core.exec.sampler import Row, beam_candidates, filter_logits, rows_for, sample, uniforms
from core.request import Request, SamplingParams

VOCAB = 3000
PARAMS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(temperature=1.3, top_k=1),
    SamplingParams(temperature=0.9, top_p=0.9),
    SamplingParams(temperature=1.0, top_p=0.01),
    SamplingParams(temperature=3.0, top_p=0.999),  # more tokens than the quick path looks at
    SamplingParams(temperature=1.0, min_p=0.2),
    SamplingParams(temperature=0.8, top_k=40, top_p=0.8, min_p=0.05),
    SamplingParams(temperature=0.8, top_k=VOCAB + 5, top_p=0.5),
]


def _logits(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def _row(source: int = 0, *, name: str = "r", tokens: tuple[int, ...] = (1, 2), **params) -> Row:
    request = Request.make(name, tokens, SamplingParams(**params))
    return rows_for(source, request.sequences[0], engine_seed=0)[0]


def _processors(params: SamplingParams) -> LogitsProcessorList:
    chosen = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.top_k:
        chosen.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        chosen.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        chosen.append(MinPLogitsWarper(params.min_p))
    return chosen


@pytest.mark.parametrize("seed", range(5))
def test_filters_of_a_mixed_batch_equal_transformers_row_by_row(seed: int) -> None:
    logits = _logits(len(PARAMS), seed)
    found = filter_logits(logits, PARAMS)
    for index, params in enumerate(PARAMS):
        wanted = _processors(params)(None, logits[index : index + 1])[0]
        assert torch.equal(found[index].isinf(), wanted.isinf()), params
        torch.testing.assert_close(found[index], wanted)


def test_repetition_penalty_counts_prompt_and_output_as_transformers_does() -> None:
    logits = _logits(2)
    top = logits[0].topk(3).indices.tolist()
    row = _row(0, tokens=(*top, top[0]), repetition_penalty=50.0, logprobs=1)
    (found,) = sample(logits, [row])
    wanted = RepetitionPenaltyLogitsProcessor(50.0)(torch.tensor([top]), logits[:1].clone())
    assert found.token_id == wanted.argmax().item()
    assert found.token_id not in top
    # What is reported is the model's own view, before the penalty.
    assert found.logprob == pytest.approx(
        logits[0].log_softmax(-1)[found.token_id].item(), abs=1e-5
    )
    assert found.top[0][0] == top[0]


def test_greedy_rows_take_the_likeliest_token_beside_random_ones() -> None:
    logits = _logits(3)
    rows = [_row(2), _row(0, temperature=1.5), _row(1)]
    found = sample(logits, rows)
    assert found[0].token_id == logits[2].argmax().item()
    assert found[2].token_id == logits[1].argmax().item()


def test_a_row_draws_the_same_token_alone_and_in_any_batch() -> None:
    logits = _logits(6)
    rows = [_row(i, name=f"r{i}", temperature=1.2, top_k=50 * i, seed=i) for i in range(6)]
    together = [item.token_id for item in sample(logits, rows)]
    backwards = [item.token_id for item in sample(logits, rows[::-1])][::-1]
    alone = [sample(logits, [row])[0].token_id for row in rows]
    assert together == backwards == alone


def test_samples_follow_the_filtered_distribution() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    request = Request.make("r", (1,), SamplingParams(temperature=1.0, top_k=3))
    seq = request.sequences[0]
    rows = [Row(0, seq, seed=9, sample_index=0, position=place) for place in range(20_000)]
    counts = np.bincount([item.token_id for item in sample(logits, rows)], minlength=4)
    assert counts[3] == 0
    assert counts[:3] / 20_000 == pytest.approx(np.array([0.5, 0.3, 0.15]) / 0.95, abs=0.015)


def test_random_numbers_are_even_and_differ_by_seed_sample_and_position() -> None:
    seq = Request.make("r", (1,), SamplingParams()).sequences[0]
    rows = [
        Row(0, seq, seed, sample_index, position)
        for seed in (0, 1, (1 << 63) - 1)
        for sample_index in range(20)
        for position in range(100)
    ]
    numbers = uniforms(rows)
    assert len(set(numbers.tolist())) == len(rows)
    assert numbers.min() > 0
    assert numbers.max() < 1
    histogram = np.histogram(numbers, bins=10, range=(0, 1))[0]
    assert histogram == pytest.approx(np.full(10, 600), abs=100)


def test_a_request_without_a_seed_takes_the_engines_and_its_own_name() -> None:
    def seed(name: str, engine_seed: int, **params) -> int:
        request = Request.make(name, (1,), SamplingParams(**params))
        return rows_for(0, request.sequences[0], engine_seed)[0].seed

    assert seed("a", 0) == seed("a", 0)
    assert len({seed("a", 0), seed("b", 0), seed("a", 1)}) == 3
    assert seed("a", 0, seed=5) == seed("b", 1, seed=5) == 5


def test_samples_of_one_request_equal_samples_that_are_requests_of_their_own() -> None:
    params = SamplingParams(n=3, temperature=1.0)
    parent = Request.make("p", (1, 2), params)
    together = rows_for(0, parent.sequences[0], engine_seed=4)
    apart = [
        rows_for(
            0,
            Request.make(
                f"p-{index}",
                (1, 2),
                SamplingParams(temperature=1.0),
                parent_id="p",
                sample_index=index,
            ).sequences[0],
            engine_seed=4,
        )[0]
        for index in range(3)
    ]
    assert uniforms(together).tolist() == uniforms(apart).tolist()


def test_alternatives_are_as_many_as_each_row_asks_for() -> None:
    logits = _logits(3)
    found = sample(logits, [_row(0, logprobs=4), _row(1), _row(2, logprobs=0)])
    wanted = logits[0].log_softmax(-1).topk(4)
    assert [token_id for token_id, _ in found[0].top] == wanted.indices.tolist()
    assert [value for _, value in found[0].top] == pytest.approx(wanted.values.tolist(), abs=1e-5)
    assert found[1].top == found[2].top == ()


def test_beam_candidates_break_ties_by_the_smaller_id() -> None:
    logits = torch.zeros(1, 8)
    logits[0, 5] = logits[0, 2] = 1.0
    (found,) = beam_candidates(logits, [_row(0, beam_width=2)], 2)
    assert [item.token_id for item in found] == [2, 5]


def test_nothing_to_sample_gives_nothing() -> None:
    assert sample(torch.empty(0, VOCAB), []) == []


def test_a_temperature_that_would_overflow_is_greedy() -> None:
    assert [SamplingParams(temperature=t).is_greedy for t in (0.0, 1e-40, 9e-6, 1e-5, 0.1)] == [
        True, True, True, False, False,
    ]  # fmt: skip
    logits = torch.tensor([[1.0, 300.0, 2.0]])
    for temperature in (1e-40, 1e-5):
        request = Request.make("A", [0], SamplingParams(temperature=temperature, seed=1))
        (row,) = rows_for(0, request.sequences[0], 0)
        assert sample(logits, [row])[0].token_id == 1
