"""The runner's tokens are transformers' own, whatever the batching, chunking and blocks."""

import pytest
import torch

from core.config import EngineConfig
from core.exec.runner import ModelRunner, block_bytes
from core.sched.output import ScheduledSequence, SchedulerOutput
from tests.exec.tiny_models import CONFIGS, HandScheduler, generate, make_request, pair, prompts


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_greedy_tokens_equal_generate_in_mixed_chunked_batches(
    family: str, block_size: int
) -> None:
    reference, loaded = pair(family)
    texts = prompts(5, seed=block_size)
    requests = [make_request(text, f"r{i}", max_tokens=12) for i, text in enumerate(texts)]
    hand = HandScheduler(loaded, block_size=block_size, num_blocks=300, seed=block_size)
    hand.run(requests)
    for text, request in zip(texts, requests, strict=True):
        assert request.sequences[0].output_token_ids == generate(reference, text, 12)


def test_tokens_do_not_change_when_requests_are_preempted_and_recomputed() -> None:
    reference, loaded = pair("llama")
    texts = prompts(4, seed=7)
    requests = [make_request(text, f"r{i}", max_tokens=10) for i, text in enumerate(texts)]
    HandScheduler(loaded, preempt=0.1, chunk=16, seed=3).run(requests)
    for text, request in zip(texts, requests, strict=True):
        assert request.sequences[0].output_token_ids == generate(reference, text, 10)


@pytest.mark.parametrize("backend", ["torch", "numba", "reference"])
def test_packed_logits_equal_a_dense_forward(backend: str) -> None:
    reference, loaded = pair("gemma3")
    text = prompts(2, seed=5, longest=40)[1]
    hand = HandScheduler(loaded, block_size=3, chunk=64, backend=backend)
    request = make_request(text, logprobs=100)
    result = hand.step([request])
    while "r" not in result.samples:
        result = hand.step([request])
    with torch.inference_mode():
        wanted = reference(torch.tensor([text])).logits[0, -1].log_softmax(-1)
    for token_id, logprob in result.samples["r"][0].top:
        assert logprob == pytest.approx(wanted[token_id].item(), abs=1e-4)


def test_sampled_tokens_do_not_depend_on_batching_or_preemption() -> None:
    _, loaded = pair("qwen3")
    texts = prompts(4, seed=11)

    def outputs(**settings: float) -> list[list[int]]:
        requests = [
            make_request(text, f"r{i}", max_tokens=10, temperature=0.9, top_p=0.9)
            for i, text in enumerate(texts)
        ]
        HandScheduler(loaded, **settings).run(requests)  # type: ignore[arg-type]
        return [request.sequences[0].output_token_ids for request in requests]

    first = outputs(seed=1)
    assert outputs(seed=2, chunk=40, block_size=7) == first
    assert outputs(seed=3, preempt=0.2, chunk=16) == first
    assert len({tuple(tokens) for tokens in first}) == len(texts)


def test_first_token_of_a_request_with_samples_is_drawn_n_times() -> None:
    _, loaded = pair("llama")
    request = make_request([5, 6, 7], n=4, temperature=5.0)
    hand = HandScheduler(loaded, chunk=3)
    result = hand.step([request])
    while not result.samples:
        result = hand.step([request])
    tokens = [sampled.token_id for sampled in result.samples["r"]]
    assert len(tokens) == 4
    assert len(set(tokens)) > 1
    second = hand.step([request])
    while not second.samples:
        second = hand.step([request])
    assert len(second.samples["r"]) == 1


def test_beam_requests_get_candidates_best_first_and_no_sample() -> None:
    reference, loaded = pair("llama")
    request = make_request([5, 6, 7], beam_width=3)
    hand = HandScheduler(loaded, chunk=3)
    result = hand.step([request])
    while not result.candidates:
        result = hand.step([request])
    with torch.inference_mode():
        wanted = reference(torch.tensor([[5, 6, 7]])).logits[0, -1].log_softmax(-1).topk(6)
    assert not result.samples
    assert [item.token_id for item in result.candidates["r"]] == wanted.indices.tolist()
    found = [item.logprob for item in result.candidates["r"]]
    assert found == pytest.approx(wanted.values.tolist(), abs=1e-4)


def test_swapped_and_copied_blocks_keep_their_content() -> None:
    _, loaded = pair("llama")
    config = EngineConfig(block_size=4, num_blocks=8, semantics="paper", num_host_blocks=4)
    runner = ModelRunner(loaded, config)
    request = make_request([5, 6, 7, 8, 9, 10])
    seq = request.sequences[0]

    def decode(blocks: tuple[int, ...], start: int, **moves: tuple[tuple[int, int], ...]) -> float:
        item = ScheduledSequence(seq, "decode", start, 6 - start, blocks, True)
        result = runner.execute(SchedulerOutput(1, (item,), **moves))
        return result.samples[seq.seq_id][0].logprob

    wanted = decode((2, 5), 0)
    moved = decode((6, 1), 5, swap_out=((2, 0), (5, 3)), swap_in=((0, 6), (3, 1)))
    assert moved == pytest.approx(wanted, abs=1e-5)
    copied = decode((3, 4), 5, copies=((6, 3), (1, 4)))
    assert copied == pytest.approx(wanted, abs=1e-5)


def test_a_step_without_tokens_only_moves_memory() -> None:
    _, loaded = pair("llama")
    config = EngineConfig(num_blocks=4, semantics="paper", num_host_blocks=2)
    result = ModelRunner(loaded, config).execute(SchedulerOutput(1, (), swap_out=((1, 0),)))
    assert not result.samples
    assert result.memory["kv_pool"] == 4 * block_bytes(loaded.info, config)


def test_pool_bytes_are_counted_before_anything_is_allocated() -> None:
    _, loaded = pair("llama")
    each = block_bytes(loaded.info, EngineConfig(block_size=16))
    assert each == 3 * 2 * 16 * 2 * 8 * 4  # layers, K and V, slots, KV heads, head_dim, float32
    runner = ModelRunner(loaded, EngineConfig(kv_memory=5 * each + 1))
    assert runner.kv.num_blocks == 5
    assert runner.block_bytes == each
    assert runner.kv.num_bytes == 5 * each


def test_a_block_table_that_is_too_short_is_refused() -> None:
    _, loaded = pair("llama")
    seq = make_request([1, 2, 3, 4, 5]).sequences[0]
    item = ScheduledSequence(seq, "prefill", 0, 5, (1,), True)
    runner = ModelRunner(loaded, EngineConfig(block_size=4, num_blocks=4))
    with pytest.raises(ValueError, match=r"don't fit 1 blocks of 4"):
        runner.execute(SchedulerOutput(1, (item,)))
