"""Useful tokens a second: our engine beside transformers' own batching, in one process.

    python -m tests.bench.engine [--dtype auto|float32|bfloat16] [--repeat 3] [--profile]

Sixteen prompts of 10 to 130 tokens arrive at once and want 16 to 128 tokens each; nobody stops
early. A useful token is one that was asked for. The four ways take turns, and a row is the median
of its turns:

- glassblock with its trace on, and off;
- transformers' continuous batching (the machinery of `generate_batch`), told each request's own
  length, timed from the first request to the last answer with its manager already running;
- transformers' static `generate`: one left-padded batch that runs to its longest member.

All use the same weights, dtype and number of threads. Before anything is timed, our greedy tokens
in float32 must equal those of `generate` for each prompt alone. Times are printed, never asserted.
"""

import argparse
import cProfile
import json
import pstats
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig

from core.config import EngineConfig
from core.exec.build import build_engine, describe
from core.exec.model import LoadedModel, load_model
from core.request import SamplingParams

_BLOCKS = 320  # room for everybody: no side preempts
_BLOCK_SIZE = 16
_BUDGET = 512


@dataclass(frozen=True, slots=True)
class Job:
    """One request: its prompt and how many tokens it wants."""

    prompt: list[int]
    count: int


@dataclass(frozen=True, slots=True)
class Rate:
    """Useful tokens for each second on the wall and for each second of processor time.

    On a machine that others use too, the second is the steadier one.
    """

    wall: float
    processor: float


Way = Callable[[list[Job]], tuple[float, list[list[int]]]]


def workload(vocab: int, seed: int = 0) -> list[Job]:
    """Sixteen requests of mixed lengths, the same for a seed."""
    rng = random.Random(seed)
    shapes = [(rng.randint(10, 130), rng.randint(16, 128)) for _ in range(16)]
    return [Job([rng.randrange(1000, vocab) for _ in range(n)], count) for n, count in shapes]


def ours(loaded: LoadedModel, jobs: list[Job], *, record: bool) -> tuple[float, list[list[int]]]:
    """Seconds and tokens of our engine."""
    config = EngineConfig(
        block_size=_BLOCK_SIZE, num_blocks=_BLOCKS, max_num_batched_tokens=_BUDGET
    )
    engine = build_engine(loaded, config, record=record)
    start = time.perf_counter()
    for job in jobs:
        engine.add_request(job.prompt, SamplingParams(max_tokens=job.count, ignore_eos=True))
    for _ in engine.run():
        pass
    seconds = time.perf_counter() - start
    return seconds, [list(output.outputs[0].token_ids) for output in engine.outputs()]


def continuous(model: Any, jobs: list[Job]) -> tuple[float, list[list[int]]]:
    """Seconds and tokens of transformers' continuous batching."""
    settings: Any = model.generation_config.__class__(
        do_sample=False, max_new_tokens=128, eos_token_id=-1, pad_token_id=0
    )
    memory = ContinuousBatchingConfig(
        page_size=_BLOCK_SIZE, num_blocks=_BLOCKS, max_batch_tokens=_BUDGET
    )
    results: dict[str, list[int]] = {}
    with model.continuous_batching_context_manager(
        generation_config=settings, continuous_batching_config=memory, timeout=5
    ) as manager:
        start = time.perf_counter()
        for index, job in enumerate(jobs):
            manager.add_request(job.prompt, request_id=str(index), max_new_tokens=job.count)
        while len(results) < len(jobs):
            result = manager.get_result(timeout=60)
            if result is None:
                raise RuntimeError("transformers' continuous batching stopped early")
            if result.is_finished():
                results[result.request_id] = result.generated_tokens
        seconds = time.perf_counter() - start
    return seconds, [results[str(index)] for index in range(len(jobs))]


def static(model: Any, jobs: list[Job]) -> tuple[float, list[list[int]]]:
    """Seconds and useful tokens of one left-padded batch."""
    width = max(len(job.prompt) for job in jobs)
    ids = torch.tensor([[0] * (width - len(job.prompt)) + job.prompt for job in jobs])
    mask = torch.tensor([[0] * (width - len(job.prompt)) + [1] * len(job.prompt) for job in jobs])
    start = time.perf_counter()
    output = _generate(model, ids, mask, max(job.count for job in jobs))
    seconds = time.perf_counter() - start
    return seconds, [
        row[width : width + job.count].tolist() for row, job in zip(output, jobs, strict=True)
    ]


def check(jobs: list[Job]) -> None:
    """Compares our float32 tokens with generate's, one prompt after another."""
    loaded = load_model(dtype="float32", device="cpu")
    plain = _plain(loaded)
    _, tokens = ours(loaded, jobs, record=True)
    for index, (job, got) in enumerate(zip(jobs, tokens, strict=True)):
        ids = torch.tensor([job.prompt])
        output = _generate(plain, ids, torch.ones_like(ids), job.count)
        wanted = output[0, len(job.prompt) :].tolist()
        if got != wanted:
            raise SystemExit(f"prompt {index}: {got} is not generate's {wanted}")


def measure(ways: dict[str, Way], jobs: list[Job], repeat: int) -> dict[str, Rate]:
    """Median useful tokens a second of each way, after a short run to warm up."""
    useful = sum(job.count for job in jobs)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    processor: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way([Job(job.prompt, 4) for job in jobs])
    for _ in range(repeat):
        for name, way in ways.items():
            before = time.process_time()
            took, tokens = way(jobs)
            processor[name].append(time.process_time() - before)
            seconds[name].append(took)
            if sum(map(len, tokens)) != useful:
                raise SystemExit(f"{name}: {sum(map(len, tokens))} tokens, not {useful}")
    return {
        name: Rate(
            useful / statistics.median(seconds[name]), useful / statistics.median(processor[name])
        )
        for name in ways
    }


def main() -> None:
    """Checks, measures, prints a table and then JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-check", action="store_true", help="skip the comparison of tokens")
    parser.add_argument("--profile", action="store_true", help="profile our engine instead")
    options = parser.parse_args()
    log: Any = transformers.utils.logging
    log.disable_progress_bar()
    loaded = load_model(dtype=options.dtype, device="cpu")
    jobs = workload(loaded.info.vocab_size)
    if options.profile:
        _profile(loaded, jobs)
        return
    if not options.no_check:
        check(jobs)
    plain = _plain(loaded)
    rates = measure(
        {
            "glassblock, trace on": partial(ours, loaded, record=True),
            "glassblock, trace off": partial(ours, loaded, record=False),
            "transformers, continuous": partial(continuous, plain),
            "transformers, static": partial(static, plain),
        },
        jobs,
        options.repeat,
    )
    _report(rates, describe(loaded) | {"transformers": transformers.__version__})


def _report(rates: dict[str, Rate], machine: dict[str, object]) -> None:
    first = next(iter(rates.values()))
    title = f"useful tokens, {machine['dtype']}"
    print(f"{title:28}{'a second':>10}{'ours / it':>11}{'a CPU second':>14}{'ours / it':>11}")
    for name, rate in rates.items():
        print(
            f"{name:28}{rate.wall:10.1f}{first.wall / rate.wall:11.2f}"
            f"{rate.processor:14.1f}{first.processor / rate.processor:11.2f}"
        )
    print(json.dumps({"rates": {k: asdict(v) for k, v in rates.items()}, "machine": machine}))


def _plain(loaded: LoadedModel) -> Any:
    """The same weights in a model that is untouched."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        loaded.model.config._name_or_path, dtype=loaded.model.dtype, attn_implementation="sdpa"
    )
    model.generation_config.eos_token_id = None
    return model


def _generate(model: Any, ids: torch.Tensor, mask: torch.Tensor, count: int) -> Any:
    return model.generate(
        ids, attention_mask=mask, max_new_tokens=count, do_sample=False, pad_token_id=0
    )


def _profile(loaded: LoadedModel, jobs: list[Job]) -> None:
    ours(loaded, jobs, record=True)
    with cProfile.Profile() as python:
        ours(loaded, jobs, record=True)
    pstats.Stats(python).sort_stats("tottime").print_stats(25)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as operators:
        ours(loaded, jobs, record=True)
    print(operators.key_averages().table(sort_by="self_cpu_time_total", row_limit=18))


if __name__ == "__main__":
    main()
