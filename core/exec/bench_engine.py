"""Useful tokens a second and their delays: our engine beside transformers', in one process.

Requests of mixed lengths arrive at once, and nobody stops early. A useful token is one that was
asked for. Every way has the same memory: as many slots as a static batch needs, each row of it the
longest prompt and the longest answer. The ways take turns:

- glassblock with its trace on, and off;
- transformers' continuous batching (the machinery of `generate_batch`), told each request's own
  length, timed from the first request to the last answer with its manager already running;
- transformers' static `generate`: left-padded batches in order of arrival, each of which runs to
  its longest member.

All use the same weights, dtype and number of threads. Our greedy tokens in float32 are compared
with `generate`'s for each prompt alone before anything is timed (`check_tokens`).
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig

from core.bench.report import Report, Row, Spread, in_turns, machine
from core.config import EngineConfig
from core.errors import BenchError
from core.exec.build import build_engine, describe
from core.exec.model import LoadedModel
from core.request import SamplingParams

__all__ = [
    "Job", "Run", "bench_engine", "blocks_for", "check_tokens", "plain_model", "run_ours",
    "workload",
]  # fmt: skip

_BLOCK_SIZE = 16
_BUDGET = 512
_ABOUT_P99 = (
    f"A decode waits for prompts that are prefilled in the same step, up to {_BUDGET} tokens of "
    "them: that is the high p99. A static batch prefills before anybody's first token."
)


@dataclass(frozen=True, slots=True)
class Job:
    """One request: its prompt and how many tokens it wants."""

    prompt: list[int]
    count: int


@dataclass(frozen=True, slots=True)
class Run:
    """One turn of a way.

    Attributes:
        seconds: on the wall, from the first request to the last token.
        processor: seconds of processor time of the whole process.
        tokens: each job's.
        stamps: seconds from the start until each of a job's tokens was there.
    """

    seconds: float
    processor: float
    tokens: list[list[int]]
    stamps: list[list[float]]

    @property
    def useful(self) -> int:
        """Tokens that were asked for."""
        return sum(map(len, self.tokens))

    def gaps(self) -> list[float]:
        """Seconds between a job's tokens, sorted."""
        return sorted(later - sooner for times in self.stamps for sooner, later in pairwise(times))


_Way = Callable[[list[Job]], Run]

# Name, unit, which is better, and the figure of one turn.
_FIGURES: tuple[tuple[str, str, str, Callable[[Run], float]], ...] = (
    ("useful tokens", "a second", "more", lambda run: run.useful / run.seconds),
    ("useful tokens", "a processor second", "more", lambda run: run.useful / run.processor),
    (
        "time to first token, median", "ms", "less",
        lambda run: 1e3 * statistics.median(times[0] for times in run.stamps),
    ),
    ("inter-token latency, p50", "ms", "less", lambda run: 1e3 * _quantile(run.gaps(), 0.50)),
    ("inter-token latency, p99", "ms", "less", lambda run: 1e3 * _quantile(run.gaps(), 0.99)),
)  # fmt: skip


def workload(vocab: int, *, requests: int = 16, longest: int = 128, seed: int = 0) -> list[Job]:
    """Requests of mixed lengths, the same for a seed: prompts of 10 to 130 tokens by default."""
    rng = random.Random(seed)
    low = min(16, longest)
    shapes = [
        (rng.randint(min(10, longest), longest + 2), rng.randint(low, longest))
        for _ in range(requests)
    ]
    first = min(1000, vocab // 2)  # past the marks and the letters
    return [Job([rng.randrange(first, vocab) for _ in range(n)], count) for n, count in shapes]


def bench_engine(
    loaded: LoadedModel,
    plain: Any,
    jobs: list[Job],
    *,
    batch: int | None = None,
    turns: int = 3,
    command: str = "",
    notes: Sequence[str] = (),
    tell: Callable[[float], None] = lambda done: None,
) -> Report:
    """Measures every way, after a short run of each to warm up.

    Args:
        loaded: for our engine.
        plain: the same weights in a model of transformers that is untouched; see `plain_model`.
        jobs: the workload.
        batch: rows of a static batch, which decides everybody's memory; None is all jobs at once.
        turns: of each way.
        command: repeats it.
        notes: sentences that belong beside the figures.
        tell: called with the share done.

    Raises:
        BenchError: a way gave fewer tokens than were asked for.
    """
    batch = len(jobs) if batch is None else batch
    blocks = blocks_for(jobs, batch)
    ways: dict[str, _Way] = {
        "glassblock, trace on": partial(run_ours, loaded, record=True, blocks=blocks),
        "glassblock, trace off": partial(run_ours, loaded, record=False, blocks=blocks),
        "transformers, continuous": partial(_continuous, plain, blocks=blocks),
        "transformers, static": partial(_static, plain, batch=batch),
    }
    for way in ways.values():
        way([Job(job.prompt, min(4, job.count)) for job in jobs[:batch]])
    runs: dict[str, list[Run]] = {name: [] for name in ways}

    def turn(name: str) -> float:
        run = ways[name](jobs)
        if [len(tokens) for tokens in run.tokens] != [job.count for job in jobs]:
            raise BenchError("bench_tokens", way=name, got=run.useful)
        runs[name].append(run)
        return run.seconds

    in_turns({name: partial(turn, name) for name in ways}, turns, tell)
    settings = {
        "requests": len(jobs),
        "rows of a static batch": min(batch, len(jobs)),
        "slots": blocks * _BLOCK_SIZE,
        "prompt tokens": sum(len(job.prompt) for job in jobs),
        "useful tokens": sum(job.count for job in jobs),
        "turns": turns,
        **describe(loaded),
    }
    rows = [
        Row(name, unit, better, {way: Spread.of([*map(figure, runs[way])]) for way in ways})  # type: ignore[arg-type]
        for name, unit, better, figure in _FIGURES
    ]
    packages = machine("torch", "transformers", "numpy")
    told = (*notes, _ABOUT_P99)
    return Report("engine", command, packages, settings, tuple(ways), tuple(rows), told)


def check_tokens(loaded: LoadedModel, plain: Any, jobs: list[Job]) -> None:
    """Compares our tokens with generate's, one prompt after another; both in float32.

    Raises:
        BenchError: a token differs.
    """
    tokens = run_ours(loaded, jobs, record=True).tokens
    for index, (job, got) in enumerate(zip(jobs, tokens, strict=True)):
        ids = torch.tensor([job.prompt])
        output = _generate(plain, ids, torch.ones_like(ids), job.count)
        if got != output[0, len(job.prompt) :].tolist():
            raise BenchError("bench_differs", number=index + 1)


def plain_model(loaded: LoadedModel) -> Any:
    """The same weights, read again, in a model that is untouched."""
    log: Any = transformers.utils.logging
    log.disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(
        loaded.model.config._name_or_path, dtype=loaded.model.dtype, attn_implementation="sdpa"
    )
    model.generation_config.eos_token_id = None
    return model


def blocks_for(jobs: list[Job], batch: int) -> int:
    """Blocks that hold as much as a static batch of the longest prompt and the longest answer."""
    longest = max(len(job.prompt) for job in jobs) + max(job.count for job in jobs)
    return -(-batch * longest // _BLOCK_SIZE)


def run_ours(
    loaded: LoadedModel, jobs: list[Job], *, record: bool, blocks: int | None = None
) -> Run:
    """One turn of our engine, with or without its trace; None is blocks for all jobs at once."""
    config = EngineConfig(
        block_size=_BLOCK_SIZE,
        # One more: the first block of "v1" holds no token.
        num_blocks=1 + (blocks_for(jobs, len(jobs)) if blocks is None else blocks),
        max_num_batched_tokens=_BUDGET,
        max_num_seqs=len(jobs),
    )
    engine = build_engine(loaded, config, record=record)
    stamps: dict[str, list[float]] = {f"job{index}": [] for index in range(len(jobs))}
    before, start = time.process_time(), time.perf_counter()
    for name, job in zip(stamps, jobs, strict=True):
        params = SamplingParams(max_tokens=job.count, ignore_eos=True)
        engine.add_request(job.prompt, params, request_id=name)
    for step in engine.run():
        now = time.perf_counter() - start
        for item in step.output.scheduled:
            if item.samples:
                stamps[item.seq.request.request_id].append(now)
    seconds, processor = time.perf_counter() - start, time.process_time() - before
    tokens = [list(output.outputs[0].token_ids) for output in engine.outputs()]
    return Run(seconds, processor, tokens, list(stamps.values()))


def _continuous(model: Any, jobs: list[Job], *, blocks: int) -> Run:
    settings: Any = model.generation_config.__class__(
        do_sample=False,
        max_new_tokens=max(job.count for job in jobs),
        eos_token_id=-1,
        pad_token_id=0,
    )
    memory = ContinuousBatchingConfig(
        page_size=_BLOCK_SIZE, num_blocks=blocks, max_batch_tokens=_BUDGET
    )
    results: dict[str, Any] = {}
    with model.continuous_batching_context_manager(
        generation_config=settings, continuous_batching_config=memory, timeout=5
    ) as manager:
        before, start = time.process_time(), time.perf_counter()
        for index, job in enumerate(jobs):
            manager.add_request(
                job.prompt,
                request_id=str(index),
                max_new_tokens=job.count,
                record_timestamps=True,
            )
        while len(results) < len(jobs):
            result = manager.get_result(timeout=60)
            if result is None:
                raise BenchError("bench_stopped")
            if result.is_finished():
                results[result.request_id] = result
        seconds, processor = time.perf_counter() - start, time.process_time() - before
    ordered = [results[str(index)] for index in range(len(jobs))]
    return Run(
        seconds,
        processor,
        [list(result.generated_tokens) for result in ordered],
        [[stamp - start for stamp in result.timestamps] for result in ordered],
    )


def _static(model: Any, jobs: list[Job], *, batch: int) -> Run:
    before, start = time.process_time(), time.perf_counter()
    done = [
        _static_batch(model, jobs[first : first + batch], start)
        for first in range(0, len(jobs), batch)
    ]
    seconds, processor = time.perf_counter() - start, time.process_time() - before
    tokens, stamps = (
        [item for part in parts for item in part] for parts in zip(*done, strict=True)
    )
    return Run(seconds, processor, tokens, stamps)


def _static_batch(
    model: Any, jobs: list[Job], start: float
) -> tuple[list[list[int]], list[list[float]]]:
    """Each job's tokens and when they were there, in seconds since `start`."""
    width = max(len(job.prompt) for job in jobs)
    ids = torch.tensor([[0] * (width - len(job.prompt)) + job.prompt for job in jobs])
    mask = torch.tensor([[0] * (width - len(job.prompt)) + [1] * len(job.prompt) for job in jobs])
    times: list[float] = []

    def note(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        times.append(time.perf_counter() - start)
        return torch.zeros(len(jobs), dtype=torch.bool)  # nobody stops early

    output = _generate(model, ids, mask, max(job.count for job in jobs), stopping_criteria=[note])
    tokens = [
        row[width : width + job.count].tolist() for row, job in zip(output, jobs, strict=True)
    ]
    return tokens, [times[: job.count] for job in jobs]


def _generate(model: Any, ids: torch.Tensor, mask: torch.Tensor, count: int, **more: Any) -> Any:
    return model.generate(
        ids, attention_mask=mask, max_new_tokens=count, do_sample=False, pad_token_id=0, **more
    )


def _quantile(ordered: list[float], share: float) -> float:
    """The value that a share of them does not exceed; 0.0 of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
