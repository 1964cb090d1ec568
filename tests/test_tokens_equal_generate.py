"""The engine's greedy tokens equal those of transformers' own generate, however small the pool.

Everything here goes through the real engine. After each run the trace passes the audit, and its
fold equals the engine's state. Where a token differs, the failure says how close the model's two
best logits were, so that a rounding tie can be told from a fault.
"""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from core.config import EngineConfig
from core.engine import Engine
from core.exec.build import build_engine
from core.exec.model import LoadedModel, load_model
from core.request import SamplingParams
from core.trace import events as ev
from core.trace.snapshot import Snapshot
from core.trace.verify import verify
from tests.exec.test_tokenizer import CODECS
from tests.exec.tiny_models import generate, pair, prompts

_SYSTEM = "You keep a library. Answer each reader in one short and friendly sentence.\n"
_TEXTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "To be, or not to be, that is",
    "Water boils at",
    "Dear Ms. Okafor,\n\nThank you for your letter of",
    "List three fruits: 1.",
    "Q: Why is the sky blue?\nA:",
    "The quick brown fox jumps over the lazy dog. " * 6,
    "今天天气很好，我们去公园",
    "请用一句话解释什么是缓存：",
    "中国的首都是",
    "床前明月光，疑是地上霜。举头望明月，",
    "数据结构与算法是计算机科学的基础。" * 3,
    "🎉🎉🎉",
    "I love pizza 🍕 and",
    "👩‍👩‍👧‍👦 is a family of",
    "🙂 你好 hello 🌍 world",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "for (int i = 0; i < n; i++) {",
    "SELECT name, age FROM users WHERE",
    "#include <stdio.h>\n\nint main(void) {\n    printf(",
    "import numpy as np\n\nx = np.arange(10)\nprint(x",
    "{\"name\": \"Ada\", \"born\": 1815, \"known_for\": [",
    "<ul>\n  <li>one</li>\n  <li>two</li>\n",
    "3.14159265358979",
    "a",
    " ",
    "\n\n",
    "The",
    "(",
)  # fmt: skip
_QUESTIONS = (
    "Where are the atlases?", "When do you close?", "我可以借几本书？", "Is there a 🐈 corner?",
    "May I eat here?", "Who wrote Middlemarch?", "print(open_hours)", "A quiet room, please.",
    "Do you lend e-readers?", "How do I renew?", "哪里有地图？", "Can my dog come in?",
    "Which floor is poetry on?", "Is there a lift?", "What does a card cost?", "Help!",
    "Where is the sea? 🌊", "Have you any Borges?", "x = [1, 2, 3]", "Goodnight.",
)  # fmt: skip


@cache
def _real() -> tuple[Any, LoadedModel]:
    """SmolLM2 twice from the same weights: untouched for generate, and in the engine."""
    loaded = load_model(dtype="float32", device="cpu")
    path = loaded.model.config._name_or_path
    plain: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    plain.generation_config.eos_token_id = None
    return plain, loaded


@cache
def _expected() -> tuple[tuple[list[int], list[int]], ...]:
    """50 prompts and generate's tokens for each: 6 to 10, in turn."""
    plain, loaded = _real()
    texts = [*_TEXTS, *(_SYSTEM + question for question in _QUESTIONS)]
    encoded = [loaded.codec.encode(text) for text in texts]
    return tuple((ids, generate(plain, ids, 6 + index % 5)) for index, ids in enumerate(encoded))


@pytest.mark.model
@pytest.mark.slow
def test_the_prompts_are_fifty_and_mixed() -> None:
    lengths = [len(ids) for ids, _ in _expected()]
    assert len({*_TEXTS, *_QUESTIONS}) == len(lengths) == 50
    assert min(lengths) == 1
    assert max(lengths) > 60


def _run(
    loaded: LoadedModel,
    config: EngineConfig,
    asked: list[tuple[list[int], SamplingParams]],
    stagger: int = 0,
    backend: Any = "auto",
) -> Engine:
    """Runs the requests, checks the trace, and returns the idle engine.

    Args:
        stagger: steps between one request's arrival and the next's.
        backend: attention kernels.
    """
    engine = build_engine(loaded, config, backend=backend)
    for ids, params in asked:
        (request, *_) = engine.add_request(ids, params)
        assert request.finish_reason != "rejected", request.error
        for record in engine.run(stagger):
            assert record.error == ""
    for record in engine.run():
        assert record.error == ""
    engine.check()
    report = verify(engine.trace())
    assert report.ok, report.violations[:3]
    snapshot = Snapshot(engine.header.layout)
    for event in engine.events:
        snapshot.apply(event)
    assert snapshot.state() == engine.state()
    return engine


def _greedy(
    expected: tuple[tuple[list[int], list[int]], ...], **params: Any
) -> list[tuple[list[int], SamplingParams]]:
    return [
        (ids, SamplingParams(max_tokens=len(tokens), ignore_eos=True, **params))
        for ids, tokens in expected
    ]


def _compare(model: Any, engine: Engine, expected: Any, samples: int = 1) -> None:
    outputs = engine.outputs()
    assert len(outputs) == len(expected)
    faults = []
    for output, (ids, tokens) in zip(outputs, expected, strict=True):
        assert len(output.outputs) == samples
        faults += [
            _difference(model, ids, tokens, list(completion.token_ids))
            for completion in output.outputs
            if list(completion.token_ids) != tokens
        ]
    assert not faults, "\n".join(faults)


def _difference(model: Any, prompt: list[int], wanted: list[int], got: list[int]) -> str:
    """Where two outputs part, and the gap between the model's two logits there."""
    place = next(
        (i for i, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b),
        min(len(wanted), len(got)),
    )
    if place >= min(len(wanted), len(got)):
        return f"{prompt[:8]}...: {len(got)} tokens, not {len(wanted)}"
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + wanted[:place]])).logits[0, -1]
    gap = float(logits[wanted[place]] - logits[got[place]])
    return (
        f"{prompt[:8]}...: output {place} is {got[place]}, not {wanted[place]}; "
        f"their logits differ by {gap:.2e}"
    )


def _count(engine: Engine, kind: type) -> int:
    return sum(isinstance(event, kind) for event in engine.events)


def _modes(engine: Engine) -> set[str]:
    return {event.mode for event in engine.events if isinstance(event, ev.RequestPreempted)}


# ------------------------------------------------------------------- the real model


@pytest.mark.parametrize(
    ("block_size", "num_blocks", "budget", "stagger"),
    # 1 + as many blocks as the longest request needs, and a few more.
    [(3, 64, 24, 0), (16, 13, 40, 1)],
)
@pytest.mark.model
@pytest.mark.slow
def test_fifty_prompts_in_a_small_v1_pool(
    block_size: int, num_blocks: int, budget: int, stagger: int
) -> None:
    plain, loaded = _real()
    config = EngineConfig(
        block_size=block_size, num_blocks=num_blocks, max_num_batched_tokens=budget
    )
    engine = _run(loaded, config, _greedy(_expected()), stagger)
    _compare(plain, engine, _expected())
    summary = engine.summary()
    assert summary.preemptions > 0
    assert summary.hit_tokens > 0
    assert _modes(engine) == {"recompute"}
    chunks = [event for event in engine.events if isinstance(event, ev.RequestScheduled)]
    assert max(len(ids) for ids, _ in _expected()) > budget  # so a prompt comes in chunks
    assert len({e.seq_id for e in chunks if e.kind == "prefill"}) == 50


@pytest.mark.parametrize("backend", ["reference", "torch", "numba"])
@pytest.mark.model
@pytest.mark.slow
def test_fifty_prompts_do_not_depend_on_the_backend(backend: str) -> None:
    plain, loaded = _real()
    config = EngineConfig(block_size=8, num_blocks=800, max_num_seqs=50)
    engine = _run(loaded, config, _greedy(_expected()), backend=backend)
    _compare(plain, engine, _expected())


@pytest.mark.model
@pytest.mark.slow
def test_four_greedy_samples_share_copy_and_swap() -> None:
    plain, loaded = _real()
    expected = _expected()[::3]
    config = EngineConfig(
        semantics="paper",
        preemption="swap",
        block_size=4,
        num_blocks=60,
        num_host_blocks=200,
        max_num_batched_tokens=128,
    )
    engine = _run(loaded, config, _greedy(expected, n=4))
    _compare(plain, engine, expected, samples=4)
    assert _count(engine, ev.BlockCopied) > 0
    assert _modes(engine) == {"swap"}
    assert _count(engine, ev.BlocksSwappedIn) > 0


@pytest.mark.model
@pytest.mark.slow
def test_beams_of_four_equal_generate() -> None:
    plain, loaded = _real()
    chosen = [ids for ids, _ in _expected()][2:26:4]
    expected = [
        (ids, generate(plain, ids, 8, num_beams=4, num_return_sequences=1)) for ids in chosen
    ]
    config = EngineConfig(
        semantics="paper", block_size=4, num_blocks=48, max_num_batched_tokens=128
    )
    params = SamplingParams(max_tokens=8, beam_width=4, ignore_eos=True)
    engine = _run(loaded, config, [(ids, params) for ids in chosen])
    best = [list(output.outputs[0].token_ids) for output in engine.outputs()]
    assert best == [tokens for _, tokens in expected]
    for output in engine.outputs():
        scores = [c.cumulative_logprob / len(c.token_ids) for c in output.outputs]
        assert all(first >= second for first, second in pairwise(scores))
    assert _count(engine, ev.BlockCopied) > 0


@pytest.mark.parametrize(
    ("reserve", "placement", "batching"),
    [
        ("max", "first_fit", "static"),
        ("pow2", "buddy", "continuous"),
        ("exact", "best_fit", "continuous"),
    ],
)
@pytest.mark.model
@pytest.mark.slow
def test_fifty_prompts_in_contiguous_memory(reserve: Any, placement: Any, batching: Any) -> None:
    plain, loaded = _real()
    config = EngineConfig(
        allocator="contiguous",
        reserve=reserve,
        placement=placement,
        batching=batching,
        max_model_len=128,
        num_blocks=42,
        max_num_batched_tokens=256,
    )
    engine = _run(loaded, config, _greedy(_expected()))
    _compare(plain, engine, _expected())
    assert _count(engine, ev.RegionReserved) == 50
    assert _count(engine, ev.RequestDeferred) > 0, "so that memory was short"


@pytest.mark.model
@pytest.mark.slow
def test_samples_and_beams_in_contiguous_memory_equal_those_in_paged() -> None:
    _, loaded = _real()
    asked = [
        (ids, SamplingParams(max_tokens=8, ignore_eos=True, **wide))
        for (ids, _), wide in zip(
            _expected()[2:26:4], [{"n": 3, "temperature": 0.8, "seed": 5}, {"beam_width": 4}] * 3,
            strict=True,
        )
    ]  # fmt: skip
    answers = []
    for allocator in ("paged", "contiguous"):
        config = EngineConfig(
            allocator=allocator,
            semantics="paper",
            reserve="exact",
            num_blocks=48,
            max_num_batched_tokens=128,
        )
        engine = _run(loaded, config, asked)
        answers.append([[c.token_ids for c in output.outputs] for output in engine.outputs()])
    assert answers[0] == answers[1]
    assert _count(engine, ev.RegionCopied) > 6


# ---------------------------------------------------------------- tiny random models


@pytest.mark.parametrize("batching", ["static", "continuous"])
@pytest.mark.parametrize("placement", ["first_fit", "best_fit", "buddy"])
@pytest.mark.parametrize("reserve", ["max", "pow2", "exact"])
def test_a_tiny_model_equals_generate_in_every_contiguous_memory(
    reserve: Any, placement: Any, batching: Any
) -> None:
    plain, bare = pair("llama")
    loaded = replace(bare, tokenizer=CODECS["byte level"]._tokenizer)
    expected = tuple((ids, generate(plain, ids, 12)) for ids in prompts(8, seed=3, longest=30))
    config = EngineConfig(
        allocator="contiguous",
        reserve=reserve,
        placement=placement,
        batching=batching,
        max_model_len=48,
        block_size=4,
        num_blocks=40,
        max_num_batched_tokens=16,
    )
    engine = _run(loaded, config, _greedy(expected))
    _compare(plain, engine, expected)
    assert _count(engine, ev.RegionReserved) == 8


@pytest.mark.parametrize("semantics", ["v1", "paper"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt2", "gemma2", "gemma3"])
def test_tiny_models_equal_generate_in_a_pool_that_preempts(family: str, semantics: Any) -> None:
    plain, bare = pair(family)
    loaded = replace(bare, tokenizer=CODECS["byte level"]._tokenizer)
    expected = tuple((ids, generate(plain, ids, 12)) for ids in prompts(8, seed=3, longest=30))
    config = EngineConfig(
        semantics=semantics,
        preemption="swap" if semantics == "paper" else "recompute",
        block_size=4,
        num_blocks=20,
        max_num_batched_tokens=16 if semantics == "v1" else 64,
    )
    engine = _run(loaded, config, _greedy(expected))
    _compare(plain, engine, expected)
    assert engine.summary().preemptions > 0
