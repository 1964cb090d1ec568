"""The engine on a random Llama-shaped model: launched kernel by kernel, then by CUDA graphs.

Weights are random, so nothing is downloaded; shapes are a real model's. The greedy tokens of a
small float32 model must agree between the backends and with transformers' own `generate`; the
large model's throughput and time between tokens are measured with graphs off and on, and once more
with graphs and an fp8 cache; its memory is reconciled with what torch reports.
"""

import gc
import statistics
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from core.config import EngineConfig
from core.engine import Engine
from core.exec.build import sized_for
from core.exec.model import LoadedModel, from_parts
from core.exec.runner import ModelRunner
from core.exec.sim_runner import NoText
from core.request import SamplingParams
from core.trace.events import StepEnded
from kernels.dispatch import Backend

_SMALL = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "initializer_range": 0.3,
}  # fmt: skip
# Llama 3.2 1B's shape.
_LARGE = {
    "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 8192, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip


def run(dry_run: bool) -> dict[str, Any]:
    """Agreement of the tokens, then throughput and memory."""
    device = "cpu" if dry_run else "cuda"
    found: dict[str, Any] = {"tokens": _agreement(device, dry_run)}
    shape = _SMALL if dry_run else _LARGE
    loaded = _model(shape, torch.float32 if dry_run else torch.bfloat16, device)
    config = EngineConfig(
        block_size=16, max_num_seqs=4 if dry_run else 64,
        max_num_batched_tokens=32 if dry_run else 4096,
        gpu_memory_utilization=None if dry_run else 0.5,
        num_blocks=64 if dry_run else None,
    )  # fmt: skip
    backend: Backend = "torch" if dry_run else "triton"  # the interpreter would take minutes here
    config = sized_for(loaded, config, backend)
    found["pool"] = {"num_blocks": config.num_blocks, "block_size": config.block_size}
    halved = replace(config, kv_cache_dtype="fp8")
    ways = {"eager": (config, False), "cuda graphs": (config, "auto"), "fp8": (halved, "auto")}
    for name, (setting, graphs) in ways.items():
        found[name] = _throughput(loaded, setting, backend, graphs, dry_run)
        print(f"   {name}: {found[name]['tokens_per_s']:.0f} tokens/s", flush=True)
    return found


def _model(shape: dict[str, Any], dtype: torch.dtype, device: str) -> LoadedModel:
    torch.manual_seed(0)
    with torch.device(device) if device != "cpu" else nullcontext():
        model: Any = AutoModelForCausalLM.from_config(LlamaConfig(**shape), dtype=dtype)
    return from_parts(model.to(device).eval(), None, name="random Llama")


def _agreement(device: str, dry_run: bool) -> dict[str, Any]:
    """Greedy tokens of every backend are those of transformers' `generate`."""
    torch.manual_seed(1)
    count, length = (2, 3) if dry_run else (50, 24)
    texts = [torch.randint(1, 97, (5 + 3 * (n % 13),)).tolist() for n in range(count)]
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(LlamaConfig(**_SMALL), dtype=torch.float32)
    model = model.to(device).eval()
    wanted = []
    for text in texts:
        ids = torch.tensor([text], device=device)
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=False,
            pad_token_id=0,
        )  # fmt: skip
        wanted.append(out[0, len(text) :].tolist())
    loaded = _model(_SMALL, torch.float32, device)
    config = EngineConfig(num_blocks=300, max_num_seqs=8, max_num_batched_tokens=64)
    backends: tuple[Backend, ...] = ("reference", "torch", "triton")
    for backend in backends:
        engine = Engine(config, ModelRunner(loaded, config, backend=backend), NoText())
        for text in texts:
            engine.add_request(text, SamplingParams(max_tokens=length))
        list(engine.run())
        found = [list(output.outputs[0].token_ids) for output in engine.outputs()]
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            if one != other:
                raise AssertionError(f"{backend}, prompt {number}: {one} is not {other}")
    return {"prompts": count, "new_tokens": length, "backends": list(backends)}


def _throughput(
    loaded: LoadedModel, config: EngineConfig, backend: Backend, graphs: Any, dry_run: bool
) -> dict[str, Any]:
    gc.collect()  # the pool of the run before is gone before the next one is made
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    runner = ModelRunner(loaded, config, backend=backend, cuda_graphs=graphs)
    _requests(runner, config, 2, 2, dry_run)  # compiles what the run will use
    engine, seconds = _requests(runner, config, *((3, 4) if dry_run else (128, 128)), dry_run)
    decodes = sorted(s for s, decode in seconds if decode)
    summary = engine.summary()
    memory = _last_memory(engine)
    _reconcile(memory)
    return {
        "graph_sizes": runner.graph_sizes,
        "tokens_per_s": summary.tokens_per_second,
        "generated_tokens": summary.generated_tokens,
        "steps": summary.steps,
        "decode_step_seconds": {
            "median": statistics.median(decodes),
            "p99": decodes[int(0.99 * (len(decodes) - 1))],
        },
        "memory": memory,
    }


def _requests(
    runner: ModelRunner, config: EngineConfig, count: int, length: int, dry_run: bool
) -> tuple[Engine, list[tuple[float, bool]]]:
    """A finished run, and each step's seconds with whether it was all decodes."""
    engine = Engine(replace(config, prefix_caching=False), runner, NoText())
    torch.manual_seed(2)
    for index in range(count):
        prompt = 4 + index if dry_run else 100 + 17 * index % 900
        text = torch.randint(1, 97, (prompt,)).tolist()
        engine.add_request(text, SamplingParams(max_tokens=length))
    records = list(engine.run())
    for record in records:
        if record.error:
            raise RuntimeError(record.error)
    return engine, [
        (record.seconds, all(item.num_tokens == 1 for item in record.output.scheduled))
        for record in records
        if record.output.scheduled
    ]


def _last_memory(engine: Engine) -> dict[str, int]:
    ended = [event for event in engine.events.since(0) if isinstance(event, StepEnded)]
    return dict(ended[-1].memory)


def _reconcile(memory: dict[str, int]) -> None:
    """The parts are what torch reports, to the byte."""
    if "allocated" not in memory:
        return
    named = sum(memory[part] for part in ("kv_pool", "weights", "graphs", "other"))
    if named != memory["allocated"] or memory["other"] < 0:
        raise AssertionError(f"memory doesn't add up: {memory}")
