"""What only a GPU runs, as far as a CPU can tell: graphs' buffers, the pool's size, the parts."""

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from core.config import EngineConfig
from core.engine import Engine
from core.errors import ConfigError, ModelError
from core.exec import cuda_graphs, gpu_memory, kernel_table
from core.exec.build import build_engine
from core.exec.runner import ModelRunner
from core.exec.sim_runner import NoText
from core.request import SamplingParams
from core.sched.output import SchedulerOutput
from tests.exec.tiny_models import HandScheduler, generate, make_request, pair, prompts

GB = 1 << 30


def capture_by_calling(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A recording that isn't one: it runs the forward again, on the same buffers."""
    run()
    return run


@pytest.fixture
def recordable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a CPU take the way of a GPU, recordings apart."""
    monkeypatch.setattr(cuda_graphs, "can_capture", lambda device, backend: True)
    monkeypatch.setattr(cuda_graphs, "capture_on_gpu", lambda device: capture_by_calling)


@pytest.mark.usefixtures("recordable")
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_tokens_do_not_change_when_decodes_run_from_padded_buffers(family: str) -> None:
    reference, loaded = pair(family)
    texts = prompts(5, seed=3)
    config = EngineConfig(block_size=4, num_blocks=90, max_num_seqs=5, max_num_batched_tokens=16)
    runner = ModelRunner(loaded, config, backend="reference", cuda_graphs=True)
    engine = Engine(config, runner, NoText())
    for index, text in enumerate(texts):
        engine.add_request(text, SamplingParams(max_tokens=6 + index))
    list(engine.run())
    assert engine.summary().generated_tokens == 6 + 7 + 8 + 9 + 10
    for text, output in zip(texts, engine.outputs(), strict=True):
        found = list(output.outputs[0].token_ids)
        assert found == generate(reference, text, len(found))


@pytest.mark.usefixtures("recordable")
def test_a_pure_decode_step_uses_the_next_larger_recording_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, loaded = pair("llama")
    runner = ModelRunner(
        loaded, EngineConfig(block_size=4, num_blocks=96, max_num_seqs=6),
        backend="reference", cuda_graphs=True,
    )  # fmt: skip
    assert runner.graph_sizes == [1, 2, 4, 6]
    graphs = runner._graphs
    assert graphs is not None
    runs: list[int] = []
    run = graphs.run
    monkeypatch.setattr(graphs, "run", lambda items: runs.append(len(items)) or run(items))
    hand = HandScheduler(loaded, chunk=64, backend="reference")
    hand.runner = runner
    requests = [make_request(text, f"r{i}") for i, text in enumerate(prompts(3, longest=9))]
    while not all(r.sequences[0].num_output_tokens for r in requests):
        hand.step(requests)
    before = len(runs)
    hand.step(requests)
    assert runs[before:] == [3]


def test_sizes_are_few_and_end_with_the_largest_batch() -> None:
    assert cuda_graphs.batch_sizes(1) == [1]
    assert cuda_graphs.batch_sizes(6) == [1, 2, 4, 6]
    assert cuda_graphs.batch_sizes(48) == [1, 2, 4, 8, 16, 32, 48]


def test_graphs_are_refused_on_a_cpu_with_the_reason() -> None:
    _, loaded = pair("llama")
    with pytest.raises(ModelError, match="this one runs numba on cpu"):
        ModelRunner(loaded, EngineConfig(num_blocks=4), cuda_graphs=True)
    assert ModelRunner(loaded, EngineConfig(num_blocks=4)).graph_sizes == []


@pytest.mark.usefixtures("recordable")
def test_a_model_that_cannot_be_recorded_runs_without_unless_graphs_were_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(device: object) -> cuda_graphs.Capture:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graphs, "capture_on_gpu", refuse)
    _, loaded = pair("llama")
    config = EngineConfig(num_blocks=8)
    assert ModelRunner(loaded, config, backend="reference").graph_sizes == []
    with pytest.raises(ModelError, match="can't be recorded as a CUDA graph: operation not"):
        ModelRunner(loaded, config, backend="reference", cuda_graphs=True)


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
def test_the_trial_step_fills_the_token_budget_and_runs(allocator: str) -> None:
    _, loaded = pair("llama")
    config = EngineConfig(
        block_size=4, max_num_seqs=3, max_num_batched_tokens=50,
        gpu_memory_utilization=0.5, allocator=allocator,
    )  # fmt: skip
    settings, step = gpu_memory.largest_step(config, loaded.info.max_model_len)
    assert step.num_tokens == 50
    assert [item.num_tokens for item in step.scheduled] == [17, 17, 16]
    result = ModelRunner(loaded, settings).execute(step)
    assert len(result.samples) == 3
    _, short = gpu_memory.largest_step(config, 2)
    assert short.num_tokens == 6  # three contexts of the longest length


def test_the_pool_gets_what_utilization_leaves_beside_the_model_and_others() -> None:
    memory = gpu_memory.GpuMemory(
        total=80 * GB, free=50 * GB, allocated=16 * GB, reserved=20 * GB, peak=18 * GB
    )
    assert memory.non_torch == 10 * GB
    assert gpu_memory.kv_budget(memory, 0.5, 18 * GB) == 12 * GB
    assert gpu_memory.kv_budget(memory, 0.3, 18 * GB) < 0


def test_the_parts_of_memory_add_up_to_what_torch_reports() -> None:
    memory = gpu_memory.GpuMemory(total=1000, free=300, allocated=512, reserved=600, peak=580)
    found = gpu_memory.parts(memory, kv_pool=200, weights=250, graphs=20, before=505)
    named = ("kv_pool", "weights", "graphs", "other")
    assert sum(found[name] for name in named) == found["allocated"] == 512
    assert found["activation_peak"] == 75
    assert found["non_torch"] == 100


def test_memory_on_a_cpu_is_the_process() -> None:
    _, loaded = pair("llama")
    runner = ModelRunner(loaded, EngineConfig(num_blocks=4))
    held = runner.execute(SchedulerOutput(1, ())).memory
    assert set(held) == {"kv_pool", "weights", "process"}


def test_utilization_is_refused_without_a_gpu_and_beside_another_size() -> None:
    _, loaded = pair("llama")
    with pytest.raises(ConfigError, match="this model is on cpu"):
        build_engine(loaded, EngineConfig(gpu_memory_utilization=0.5))
    with pytest.raises(ConfigError, match="kv_memory and gpu_memory_utilization both set"):
        EngineConfig(kv_memory=1000, gpu_memory_utilization=0.5)
    with pytest.raises(ConfigError):
        EngineConfig(gpu_memory_utilization=1.5)


def test_a_damaged_kernel_table_in_the_cache_costs_only_its_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GLASSBLOCK_CACHE", str(tmp_path))
    assert kernel_table.load_table() == 0
    kernel_table.table_path().write_text("{")
    assert kernel_table.load_table() == 0


def test_kernels_are_not_tuned_where_they_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    _, loaded = pair("llama")
    with pytest.raises(ConfigError, match="can't be tuned here: backend 'triton' needs"):
        kernel_table.tune_kernels(loaded.info, 16)


@pytest.mark.slow
def test_tokens_do_not_depend_on_the_backend_over_fifty_prompts() -> None:
    pytest.importorskip("triton", reason="Triton isn't installed on this machine")
    _, loaded = pair("llama")
    texts = prompts(50, seed=9, longest=16)
    found: dict[str, list[list[int]]] = {}
    counts = {"reference": 12, "torch": 12, "numba": 12, "triton": 2}  # its interpreter is slow
    for backend, count in counts.items():
        config = EngineConfig(block_size=5, num_blocks=400, max_num_seqs=50)
        engine = Engine(config, ModelRunner(loaded, config, backend=backend), NoText())  # type: ignore[arg-type]
        for text in texts:
            engine.add_request(text, SamplingParams(max_tokens=count))
        list(engine.run())
        found[backend] = [list(output.outputs[0].token_ids) for output in engine.outputs()]
    assert found["reference"] == found["torch"] == found["numba"]
    assert [tokens[:2] for tokens in found["reference"]] == found["triton"]
    assert len({tuple(tokens) for tokens in found["torch"]}) > 10
