"""Runs for the player's tests: the real engine with a runner and a tokenizer made of words."""

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from core.config import EngineConfig
from core.engine import Engine
from core.request import SamplingParams
from core.sched.output import Candidate, Sampled, SchedulerOutput, StepResult
from core.trace import events as ev
from core.trace.events import Reason
from core.trace.trace import Trace

__all__ = [
    "RUNS",
    "big_run",
    "contrast_run",
    "header_of",
    "made_run",
    "make_engine",
    "story_run",
]

_VOCABULARY = (
    "the lamp hummed and a keeper could not sleep; once upon time an island cold with ships that "
    "pass by night, so he wrote to her of gulls waves wind fog bells stars 灯塔 的 光 照 亮 大海 "
    "<b> &"
)
_STORY = (
    "Write a story about a lighthouse that could not sleep. "
    "Once upon a time, on a cold island, the lamp hummed and the keeper had"
)
_CHINESE = "用 一 句话 解释 虚拟 内存 是 什么 。 虚拟 内存 把 程序 看到 的 地址 映射 到"
_CODE = 'def fibonacci(n): """Return the n-th number.""" <script>alert(1)</script>'


class WordCodec:
    """One word a token; a prompt's new words join the vocabulary."""

    def __init__(self) -> None:
        self.words = _VOCABULARY.split(" ")

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        words = text.split(" ")
        self.words += [word for word in dict.fromkeys(words) if word not in self.words]
        return [self.words.index(word) for word in words]

    def pieces(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(f" {self.words[t % len(self.words)]}" for t in token_ids)

    def stream(self) -> "WordText":
        return WordText(self)


class WordText:
    """A text of words."""

    def __init__(self, codec: WordCodec) -> None:
        self._codec = codec

    def push(self, token_id: int) -> str:
        return self._codec.pieces([token_id])[0]

    def flush(self) -> str:
        return ""

    def copy(self) -> "WordText":
        return self


class WordRunner:
    """Samples words at random, with a seed."""

    eos_token_ids: frozenset[int] = frozenset()
    max_model_len = 100_000
    vocab_size = 100_000

    def __init__(self, codec: WordCodec, seed: int = 0) -> None:
        self._words = codec.words
        self._random = random.Random(seed)

    def execute(self, output: SchedulerOutput) -> StepResult:
        samples: dict[Any, tuple[Sampled, ...]] = {}
        candidates: dict[Any, tuple[Candidate, ...]] = {}
        for item in output.scheduled:
            if not item.samples:
                continue
            params = item.seq.request.params
            if params.beam_width > 1:
                picks = self._random.sample(range(len(self._words)), 2 * params.beam_width)
                scores = sorted((-self._random.random() for _ in picks), reverse=True)
                candidates[item.seq.seq_id] = tuple(map(Candidate, picks, scores))
                continue
            is_first = item.seq.num_output_tokens == 0 and len(item.seq.request.sequences) == 1
            samples[item.seq.seq_id] = tuple(
                Sampled(self._random.randrange(len(self._words)), -self._random.random())
                for _ in range(params.n if is_first else 1)
            )
        timings = {"forward": 0.0125, "sample": 1e-4}
        return StepResult(samples, candidates, timings, {"kv_pool": 1 << 33})


def make_engine(seed: int = 0, **settings: Any) -> Engine:
    """An engine over words; small pools by default."""
    values: dict[str, Any] = {"block_size": 4, "num_blocks": 24, "max_num_batched_tokens": 24}
    config = EngineConfig(**values | settings)
    model = {"name": "words", "dtype": "none", "device": "cpu"}
    codec = WordCodec()
    return Engine(config, WordRunner(codec, seed), codec, model=model, measured=False)


def _finish(engine: Engine) -> Trace:
    for _ in engine.run(max_steps=400):
        pass
    return engine.trace()


def _v1_run() -> Trace:
    engine = make_engine(1)
    shared = list(range(12))
    for k in range(7):
        engine.add_request([*shared, 20 + k], SamplingParams(max_tokens=14))
    engine.add_request(list(range(400)), SamplingParams(max_tokens=8))
    for _ in engine.run(max_steps=12):
        pass
    engine.add_request([*shared, 40], SamplingParams(max_tokens=5, n=3))
    engine.add_request([50, 51], SamplingParams(max_tokens=30), request_id="gone")
    for _ in engine.run(max_steps=3):
        pass
    engine.abort("gone")
    _finish(engine)
    engine.manager.reset_cache()
    engine.add_request(shared, SamplingParams(max_tokens=3))
    return _finish(engine)


def _priority_run() -> Trace:
    engine = make_engine(2, policy="priority", num_blocks=14)
    for k in range(6):
        engine.add_request([k, 7, 8, 9, 10], SamplingParams(max_tokens=18), priority=(5 - k) % 3)
    return _finish(engine)


def _paper_run() -> Trace:
    engine = make_engine(3, semantics="paper", num_blocks=20, preemption="swap", num_host_blocks=30)
    for k in range(4):
        engine.add_request([k, 1, 2, 3, 4, 5], SamplingParams(max_tokens=16, n=3))
    return _finish(engine)


def _abort_while_swapped_run() -> Trace:
    """A request that ends in the swap space must give its host blocks back."""
    engine = make_engine(3, semantics="paper", num_blocks=20, preemption="swap", num_host_blocks=30)
    for first in range(2, 92, 15):
        prompt = list(range(first, first + 6))
        engine.add_request(prompt, SamplingParams(max_tokens=16, n=2, ignore_eos=True))
    for _ in engine.run():
        if engine.scheduler.swapped:
            break
    engine.abort(engine.scheduler.swapped[0].request_id)
    return _finish(engine)


def _taken_back_run() -> Trace:
    """Urgent requests take the memory of others that the same step has scheduled already."""
    engine = make_engine(
        4, block_size=1, num_blocks=24, policy="priority", prefix_caching=False,
        max_num_batched_tokens=64,
    )  # fmt: skip
    for k in range(12):
        params = SamplingParams(max_tokens=7, ignore_eos=True)
        engine.add_request([2, 3, 4], params, priority=12 - k)
        engine.step()
    return _finish(engine)


def _given_up_run() -> Trace:
    """Groups that can't be swapped out end in the middle of a step."""
    engine = make_engine(
        3, semantics="paper", block_size=2, policy="priority", watermark=0.0, preemption="swap",
        num_host_blocks=2, max_num_batched_tokens=64,
    )  # fmt: skip
    for k in range(10):
        params = SamplingParams(max_tokens=9, n=3, ignore_eos=True)
        engine.add_request([2, 3, 4, 5, 6, 7], params, priority=10 - k)
        engine.step()
    return _finish(engine)


def _beam_run() -> Trace:
    engine = make_engine(4, semantics="paper", num_blocks=40, prefix_caching=True)
    for k in range(3):
        engine.add_request([1, 2, 3, 4, 5, 6 + k], SamplingParams(max_tokens=12, beam_width=3))
    return _finish(engine)


def _memory_run(**settings: Any) -> Trace:
    """Requests of many lengths, with samples, an abort and more than fit at once."""
    values = {"num_blocks": 33, "max_model_len": 40, "max_num_batched_tokens": 40} | settings
    engine = make_engine(6, **values)
    for k in range(6):
        prompt = list(range(2 + k, 10 + 2 * k))
        engine.add_request(prompt, SamplingParams(max_tokens=4 + (7 * k) % 13, n=1 + k % 2))
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=20), request_id="gone")
    for _ in engine.run(max_steps=4):
        pass
    for k in range(5):
        engine.add_request(list(range(3 + k)), SamplingParams(max_tokens=3 + 4 * k))
    for _ in engine.run(max_steps=3):
        pass
    engine.abort("gone")
    return _finish(engine)


def _region_beam_run() -> Trace:
    engine = make_engine(
        7, semantics="paper", allocator="contiguous", reserve="exact", placement="buddy",
        num_blocks=50, max_model_len=60,
    )  # fmt: skip
    for k in range(5):
        engine.add_request([1, 2, 3, 4 + k], SamplingParams(max_tokens=9, beam_width=3))
    return _finish(engine)


_MEMORIES: dict[str, Callable[[], Trace]] = {
    f"{reserve}_{placement}_{batching}": partial(
        _memory_run, allocator="contiguous", reserve=reserve, placement=placement, batching=batching
    )
    for reserve, placement, batching in itertools.product(
        ("max", "pow2", "exact"), ("first_fit", "best_fit", "buddy"), ("continuous", "static")
    )
}

RUNS: dict[str, Callable[[], Trace]] = {
    "v1": _v1_run,
    "priority": _priority_run,
    "paper_swap": _paper_run,
    "abort_while_swapped": _abort_while_swapped_run,
    "taken_back": _taken_back_run,
    "given_up": _given_up_run,
    "beams": _beam_run,
    "paged_static": partial(_memory_run, batching="static"),
    "region_beams": _region_beam_run,
    **_MEMORIES,
}


def contrast_run(system: str) -> Trace:
    """The same twelve requests in one of four memories of 576 slots, over the same arrivals."""
    region: dict[str, Any] = {"allocator": "contiguous", "reserve": "max", "max_model_len": 256}
    settings: dict[str, dict[str, Any]] = {
        "static": region | {"batching": "static"},
        "continuous": region,
        "buddy": region | {"reserve": "pow2", "placement": "buddy"},
        "paged": {"max_model_len": 256, "prefix_caching": False},
    }
    engine = make_engine(
        8, block_size=16, num_blocks=37, max_num_batched_tokens=96, **settings[system]
    )
    engine.add_request(_STORY, SamplingParams(max_tokens=30, ignore_eos=True))
    engine.add_request(_CHINESE, SamplingParams(max_tokens=80, ignore_eos=True))
    for step in range(10):
        for _ in engine.run(max_steps=2):
            pass
        words = " ".join([_CODE if step % 3 else "what do gulls say at night"] * (1 + step % 4))
        params = SamplingParams(max_tokens=12 + 9 * (step % 5), ignore_eos=True)
        engine.add_request(words, params)
    return _finish(engine)


def made_run(system: str, num_blocks: int, num_requests: int) -> Trace:
    """A run over a memory of any size, with as many requests as fill it."""
    region: dict[str, Any] = {"allocator": "contiguous", "max_model_len": 1024}
    settings = region if system == "static" else {"prefix_caching": False}
    engine = make_engine(
        9, block_size=16, num_blocks=num_blocks, max_num_batched_tokens=4096, max_num_seqs=512,
        **settings,
    )  # fmt: skip
    for k in range(num_requests):
        prompt = [(k + i) % 40 for i in range(40 + (k * 37) % 300)]
        params = SamplingParams(max_tokens=60 + (k * 53) % 200, ignore_eos=True)
        engine.add_request(prompt, params)
    return _finish(engine)


def story_run(**settings: Any) -> Trace:
    """A run worth looking at: samples that share a prompt, copies, Chinese, waiting requests."""
    values: dict[str, Any] = {"semantics": "paper", "block_size": 16, "num_blocks": 42}
    values |= {"max_num_batched_tokens": 64, "preemption": "swap", "num_host_blocks": 40}
    engine = make_engine(5, **values | {"prefix_caching": True} | settings)
    engine.add_request(_STORY, SamplingParams(max_tokens=40, n=2))
    engine.add_request(
        _CHINESE,
        SamplingParams(max_tokens=30),
    )
    for _ in engine.run(max_steps=6):
        pass
    engine.add_request(" ".join([_CODE] * 12), SamplingParams(max_tokens=60))
    engine.add_request(_STORY, SamplingParams(max_tokens=70, n=2))
    for _ in engine.run(max_steps=10):
        pass
    engine.add_request(
        " ".join(["a long question about ships"] * 60), SamplingParams(max_tokens=20)
    )
    engine.add_request(" ".join(["what do gulls say at night"] * 20), SamplingParams(max_tokens=90))
    return _finish(engine)


def big_run(num_events: int, num_blocks: int) -> Iterator[ev.Event]:
    """A legal run of any size, made without an engine: sequences grow, end and give back."""
    index, step, block_size = 0, 1, 16
    free = list(range(num_blocks))
    live: list[tuple[str, list[int], int]] = []
    rng = random.Random(0)
    why, at = Reason("next"), "core/cache/manager.py:allocate"

    def base(phase: str) -> tuple[Any, ...]:
        nonlocal index
        index += 1
        return step, index - 1, phase, at, why

    born = 0
    while index < num_events:
        if len(free) < num_blocks // 20 or len(live) > 200:
            seq, table, _ = live.pop(rng.randrange(len(live)))
            for logical in range(len(table) - 1, -1, -1):
                after = free[-1] if free else -1
                free.append(table[logical])
                yield ev.BlockReleased(*base("free"), table[logical], seq, logical, 0, after)
            yield ev.SequenceFinished(*base("free"), seq, "length", 16 * len(table))
            yield ev.RequestFinished(*base("free"), seq, "length")
            step += 1
            continue
        seq, born = f"r{born}", born + 1
        tokens = tuple(rng.randrange(50_000) for _ in range(block_size))
        texts = ("a",) * block_size
        yield ev.RequestArrived(*base("check"), seq, seq, tokens, texts, 99, 1, 0, float(born))
        yield ev.RequestAdmitted(*base("check"), seq, 0, 16, 0, False)
        table = []
        for logical in range(rng.randrange(10, max(11, num_blocks // 150))):
            block = free.pop(0) if len(free) < 4096 else free.pop(rng.randrange(16))
            table.append(block)
            yield ev.RequestScheduled(*base("check"), seq, 16, "prefill", 16 * logical)
            yield ev.BlockAllocated(*base("allocate"), block, seq, logical)
            yield ev.SlotsWritten(*base("write"), seq, block, 0, tokens)
            yield ev.TokenSampled(*base("sample"), seq, tokens[logical % 16], "a", -0.5)
            if not free:
                break
        live.append((seq, table, 0))
        step += 1


def header_of(trace: Trace) -> dict[str, Any]:
    """The log's header, with plain values only."""
    plain: dict[str, Any] = json.loads(json.dumps(trace.header.to_dict()))
    return plain
