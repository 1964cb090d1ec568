"""Beam search chooses what transformers chooses."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from core.exec.beam import BeamSearch, rank_finished
from core.request import SeqId
from core.sched.output import Candidate
from tests.exec.tiny_models import build

EOS = 3


def _model(seed: int, spread: float) -> Any:
    config = LlamaConfig(
        vocab_size=23,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=0,
        initializer_range=spread,
    )
    return build(config, seed)


def _search(model: Any, prompt: list[int], search: BeamSearch) -> list[list[int]]:
    """Drives the search with dense forwards; output tokens of the finished beams, best first."""
    live: dict[SeqId, tuple[list[int], float]] = {SeqId("0"): ([], 0.0)}
    finished: list[tuple[list[int], float]] = []
    names = iter(range(1, 10_000))
    while True:
        candidates = {}
        for seq_id, (tokens, _) in live.items():
            with torch.inference_mode():
                scores = model(torch.tensor([prompt + tokens])).logits[0, -1].log_softmax(-1)
            best = scores.topk(search.num_candidates)
            candidates[seq_id] = tuple(map(Candidate, best.indices.tolist(), best.values.tolist()))
        totals = [(seq_id, total) for seq_id, (_, total) in live.items()]
        decision = search.advance(totals, candidates)
        finished += [
            ([*live[beam.parent][0], beam.token_id], beam.score) for beam in decision.finished
        ]
        if decision.done:
            return rank_finished(finished, search.width)
        live = {
            SeqId(str(next(names))): (
                [*live[item.parent][0], item.token_id],
                item.cumulative_logprob,
            )
            for item in decision.continuations
        }


def _generate(model: Any, prompt: list[int], width: int, **options: Any) -> list[list[int]]:
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=width,
        num_return_sequences=width,
        do_sample=False,
        **options,
    )
    rows = [row[len(prompt) :].tolist() for row in output]
    eos = options.get("eos_token_id", EOS)
    return [row[: row.index(eos) + 1] if eos in row else row for row in rows]


@pytest.mark.parametrize("width", [2, 3, 4, 5])
@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, -1.0])
def test_beams_equal_generate(width: int, early_stopping: bool, length_penalty: float) -> None:
    lengths = set()
    for seed in range(6):
        model = _model(seed, 0.25)
        prompt = [1, 5 + seed, 9]
        search = BeamSearch(
            width=width,
            max_tokens=9,
            eos_token_ids=[EOS],
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )
        found = _search(model, prompt, search)
        wanted = _generate(
            model,
            prompt,
            width,
            max_new_tokens=9,
            early_stopping=early_stopping,
            length_penalty=length_penalty,
        )
        assert found == wanted
        lengths |= {len(tokens) for tokens in found}
    assert len(lengths) > (length_penalty < 2)  # else no beam ended early


def test_beams_without_an_end_token_run_to_the_limit() -> None:
    model = _model(2, 0.25)
    search = BeamSearch(width=3, max_tokens=6, eos_token_ids=())
    found = _search(model, [1, 4], search)
    model.generation_config.eos_token_id = None
    assert found == _generate(model, [1, 4], 3, max_new_tokens=6, eos_token_id=None)
    assert {len(tokens) for tokens in found} == {6}


def test_several_end_tokens_leave_enough_beams_to_go_on() -> None:
    model = _model(4, 0.25)
    model.generation_config.eos_token_id = [3, 4, 5, 6]
    search = BeamSearch(width=2, max_tokens=8, eos_token_ids=[3, 4, 5, 6])
    assert search.num_candidates == 10
    found = _search(model, [1, 9], search)
    wanted = _generate(model, [1, 9], 2, max_new_tokens=8, eos_token_id=[3, 4, 5, 6])
    for beam, row in zip(found, wanted, strict=True):
        assert row[: len(beam)] == beam


def test_equal_scores_go_to_the_earlier_beam_and_the_smaller_token() -> None:
    search = BeamSearch(width=2, max_tokens=5, eos_token_ids=())
    choices = (Candidate(4, -1.0), Candidate(7, -1.0))
    decision = search.advance(
        [(SeqId("a"), -2.0), (SeqId("b"), -2.0)], {SeqId("a"): choices, SeqId("b"): choices}
    )
    assert [(item.parent, item.token_id) for item in decision.continuations] == [
        ("a", 4),
        ("a", 7),
    ]


def test_a_finished_beam_outside_the_best_is_not_reported() -> None:
    search = BeamSearch(width=1, max_tokens=9, eos_token_ids=[EOS])
    choices = (Candidate(8, -0.1), Candidate(EOS, -3.0))
    decision = search.advance([(SeqId("a"), 0.0)], {SeqId("a"): choices})
    assert not decision.finished
    assert [item.token_id for item in decision.continuations] == [8]
