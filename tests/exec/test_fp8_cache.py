"""The engine with kv_cache_dtype=fp8: smaller blocks, and everything else as ever."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from core.config import EngineConfig
from core.engine import Engine
from core.errors import ConfigError
from core.exec import build, cuda_graphs, gpu_memory
from core.exec.build import build_engine
from core.exec.kv_tensors import KVShape, KVTensors
from core.exec.model import LoadedModel
from core.exec.runner import ModelRunner, block_bytes
from core.request import SamplingParams
from core.sched.output import ScheduledSequence, SchedulerOutput
from core.trace import events as ev
from core.trace.snapshot import Snapshot
from core.trace.verify import verify
from kernels.fp8 import FP8, quantise
from tests.exec.test_tokenizer import CODECS
from tests.exec.tiny_models import make_request, pair, prompts

FP8_CONFIG = EngineConfig(kv_cache_dtype="fp8", num_blocks=96, block_size=4)
SHAPE = KVShape(layers=3, kv_heads=2, head_dim=8, dtype=FP8)


def model(family: str) -> LoadedModel:
    return replace(pair(family)[1], tokenizer=CODECS["byte level"]._tokenizer)


def run(loaded: LoadedModel, config: EngineConfig, **params: Any) -> tuple[Engine, list[list[int]]]:
    """An idle engine whose trace was audited and folded, and its tokens."""
    engine = build_engine(loaded, config, cuda_graphs=params.pop("cuda_graphs", "auto"),
                          backend=params.pop("backend", "auto"))  # fmt: skip
    for text in prompts(7, seed=4):
        engine.add_request(text, SamplingParams(max_tokens=12, ignore_eos=True, **params))
    assert not [record.error for record in engine.run() if record.error]
    engine.check()
    assert verify(engine.trace()).ok
    snapshot = Snapshot(engine.header.layout)
    for event in engine.events:
        snapshot.apply(event)
    assert snapshot.state() == engine.state()
    tokens = [list(one.token_ids) for output in engine.outputs() for one in output.outputs]
    assert tokens and all(len(one) == 12 for one in tokens)
    return engine, tokens


def count(engine: Engine, kind: type) -> int:
    return sum(isinstance(event, kind) for event in engine.events)


def test_a_number_takes_one_byte_and_the_pool_twice_the_blocks() -> None:
    half = replace(SHAPE, dtype=torch.bfloat16)
    assert half.block_bytes(16) == 2 * SHAPE.block_bytes(16) == 2 * 3 * 2 * 2 * 8 * 16
    loaded = model("llama")
    memory = 40 * block_bytes(loaded.info, EngineConfig(block_size=4))
    plain = build_engine(loaded, EngineConfig(kv_memory=memory, block_size=4))
    small = build_engine(loaded, EngineConfig(kv_memory=memory, block_size=4, kv_cache_dtype="fp8"))
    assert plain.config.num_blocks == 40
    assert small.config.num_blocks == 160  # the tiny model is float32: four bytes a number


def test_header_and_memory_tell_the_bytes_that_are_there() -> None:
    loaded = model("llama")
    engine, _ = run(loaded, FP8_CONFIG)
    header = engine.header
    assert header.config["kv_cache_dtype"] == "fp8"
    assert header.model["dtype"] == "float32" and header.model["kv_dtype"] == "float8_e4m3fn"
    ended = [event for event in engine.events if isinstance(event, ev.StepEnded)]
    pool = 96 * header.model["block_bytes"]
    assert ended[-1].memory["kv_pool"] == pool == 96 * SHAPE.block_bytes(4)
    plain, _ = run(loaded, replace(FP8_CONFIG, kv_cache_dtype="auto"))
    assert plain.header.model["kv_dtype"] == "float32"
    assert plain.header.model["block_bytes"] == 4 * header.model["block_bytes"]


def test_the_first_layer_stores_what_auto_stores_rounded() -> None:
    loaded = pair("llama")[1]
    stored = []
    for kind in ("auto", "fp8"):
        runner = ModelRunner(loaded, replace(FP8_CONFIG, kv_cache_dtype=kind))  # type: ignore[arg-type]
        item = ScheduledSequence(make_request([5, 6, 7]).sequences[0], "prefill", 0, 3, (2,), True)
        runner.execute(SchedulerOutput(1, (item,)))
        stored.append([cache[2, :3] for cache in runner.kv.layer(0)])
    for exact, rounded in zip(*stored, strict=True):
        ones = torch.ones(exact.shape[1])
        assert torch.equal(quantise(exact, ones).float(), rounded.float())
        assert not torch.equal(exact, rounded.float())


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2"])
def test_the_backends_agree_on_an_fp8_cache(family: str) -> None:
    loaded = model(family)
    _, wanted = run(loaded, FP8_CONFIG, backend="reference")
    engine, found = run(loaded, FP8_CONFIG)
    assert engine.header.model["backend"] == "torch"
    assert found == wanted


def test_tokens_do_not_depend_on_chunks_preemption_or_the_memory() -> None:
    loaded = model("llama")
    _, wanted = run(loaded, FP8_CONFIG)
    small, found = run(loaded, replace(FP8_CONFIG, num_blocks=20, max_num_batched_tokens=16))
    assert small.summary().preemptions > 0
    assert found == wanted
    contiguous = replace(FP8_CONFIG, allocator="contiguous", max_model_len=48)
    engine, found = run(loaded, contiguous)
    assert count(engine, ev.RegionReserved) == 7
    assert found == wanted


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
def test_forks_that_copy_and_swap_give_equal_greedy_samples(allocator: Any) -> None:
    loaded = model("llama")
    _, wanted = run(loaded, FP8_CONFIG)
    is_paged = allocator == "paged"
    config = replace(
        FP8_CONFIG, semantics="paper", allocator=allocator, num_host_blocks=96, max_model_len=48,
        num_blocks=24 if is_paged else 96, preemption="swap" if is_paged else "auto",
    )  # fmt: skip
    engine, found = run(loaded, config, n=3)
    assert found == [tokens for tokens in wanted for _ in range(3)]
    if is_paged:
        assert count(engine, ev.BlockCopied) > 0
        assert count(engine, ev.BlocksSwappedIn) > 0
    else:
        assert count(engine, ev.RegionCopied) > 0


def test_swapped_and_copied_fp8_blocks_are_equal_to_the_bit() -> None:
    kv = KVTensors(SHAPE, num_blocks=6, block_size=4, num_host_blocks=3)
    assert kv.num_bytes == 6 * kv.block_bytes()
    for index in range(3):
        for cache in kv.layer(index):
            cache.view(torch.uint8).random_(0, 256)

    def block(number: int) -> Tensor:
        layers = [cache[number].view(torch.uint8) for i in range(3) for cache in kv.layer(i)]
        return torch.stack(layers).clone()

    before = [block(number) for number in range(6)]
    kv.swap_out([(1, 2), (4, 0)])
    kv.copy([(0, 1), (3, 4)])
    assert torch.equal(block(1), before[0]) and torch.equal(block(4), before[3])
    kv.swap_in([(2, 5), (0, 1)])
    assert torch.equal(block(5), before[1]) and torch.equal(block(1), before[4])


def test_padded_decode_buffers_read_an_fp8_cache_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of CUDA graphs; the recording is a plain call."""
    loaded = model("gemma2")
    _, wanted = run(loaded, FP8_CONFIG, backend="reference")

    def capture(forward: Callable[[], Tensor]) -> Callable[[], Tensor]:
        forward()
        return forward

    monkeypatch.setattr(cuda_graphs, "can_capture", lambda device, backend: True)
    monkeypatch.setattr(cuda_graphs, "capture_on_gpu", lambda device: capture)
    _, found = run(loaded, FP8_CONFIG, backend="reference", cuda_graphs=True)
    assert found == wanted


def test_the_trial_step_of_a_gpu_has_the_cache_of_the_run() -> None:
    config = EngineConfig(gpu_memory_utilization=0.5, kv_cache_dtype="fp8")
    settings, _ = gpu_memory.largest_step(config, 64)
    assert settings.kv_cache_dtype == "fp8"


def test_another_kind_of_cache_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="auto, fp8"):
        EngineConfig(kv_cache_dtype="int8")  # type: ignore[arg-type]


def test_a_device_without_fp8_is_refused_before_anything_is_allocated() -> None:
    loaded = model("llama")
    elsewhere = replace(loaded, info=replace(loaded.info, device="mps"))
    with pytest.raises(ConfigError, match="kv_cache_dtype 'auto'"):
        build.build_engine(elsewhere, FP8_CONFIG)
