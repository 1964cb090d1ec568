"""Tiny random models of several families, and the runner's steps written out by hand."""

import random
from functools import cache
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from core.config import EngineConfig
from core.exec.model import LoadedModel, from_parts
from core.exec.runner import ModelRunner
from core.request import Request, SamplingParams
from core.sched.output import ScheduledSequence, SchedulerOutput, StepResult

VOCAB = 97
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "initializer_range": 0.3,  # wide, so that greedy choices aren't near ties
}


def _gpt2() -> GPT2Config:
    return GPT2Config(
        vocab_size=VOCAB,
        n_embd=32,
        n_layer=3,
        n_head=4,
        n_positions=256,
        bos_token_id=1,
        eos_token_id=None,
        initializer_range=0.3,
    )


CONFIGS = {
    "llama": lambda: LlamaConfig(**_COMMON),
    "mistral": lambda: MistralConfig(**_COMMON, sliding_window=9),
    "qwen2": lambda: Qwen2Config(
        **_COMMON, use_sliding_window=True, sliding_window=9, max_window_layers=1
    ),
    "qwen3": lambda: Qwen3Config(**_COMMON, head_dim=16),
    "gpt2": _gpt2,
    "gemma2": lambda: Gemma2Config(**_COMMON, head_dim=8, sliding_window=9),
    "gemma3": lambda: Gemma3TextConfig(**_COMMON, head_dim=8, sliding_window=9),
}


def build(config: PreTrainedConfig, seed: int = 0) -> Any:
    """The random model of a configuration, in float32 with eager attention."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@cache
def pair(family: str) -> tuple[Any, LoadedModel]:
    """The same weights twice: for transformers' own generate, and for the runner."""
    return build(CONFIGS[family]()), from_parts(build(CONFIGS[family]()), None, name=family)


def generate(model: Any, prompt: list[int], count: int, **options: Any) -> list[int]:
    """New tokens of transformers' own generate."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        **options,
    )
    return output[0, len(prompt) :].tolist()


class HandScheduler:
    """Steps a runner without the engine: random chunks, random blocks, random preemption."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        block_size: int = 4,
        num_blocks: int = 96,
        chunk: int = 5,
        preempt: float = 0.0,
        seed: int = 0,
        backend: str = "auto",
    ) -> None:
        config = EngineConfig(block_size=block_size, num_blocks=num_blocks)
        self.runner = ModelRunner(loaded, config, backend=backend)  # type: ignore[arg-type]
        self._block_size = block_size
        self._chunk = chunk
        self._preempt = preempt
        self._random = random.Random(seed)
        self._free = list(range(num_blocks))
        self._tables: dict[str, list[int]] = {}
        self._steps = 0

    def run(self, requests: list[Request]) -> None:
        """Runs every request to its max_tokens."""
        while live := [item for item in requests if not self._is_done(item)]:
            for request in live:
                if self._random.random() < self._preempt:
                    self._release(request)
            chosen = [item for item in live if self._random.random() < 0.8] or live
            self.step(chosen)

    def step(self, requests: list[Request]) -> StepResult:
        """One step of the given requests, with the first of the samples appended to each."""
        scheduled = tuple(self._schedule(request) for request in requests)
        self._steps += 1
        result = self.runner.execute(SchedulerOutput(self._steps, scheduled))
        for item in scheduled:
            item.seq.num_computed_tokens += item.num_tokens
            if item.samples and item.seq.seq_id in result.samples:
                item.seq.token_ids.append(result.samples[item.seq.seq_id][0].token_id)
        return result

    def _schedule(self, request: Request) -> ScheduledSequence:
        seq = request.sequences[0]
        start = seq.num_computed_tokens
        count = min(len(seq.token_ids) - start, self._random.randint(1, self._chunk))
        table = self._tables.setdefault(seq.seq_id, [])
        while len(table) * self._block_size < start + count:
            table.append(self._free.pop(self._random.randrange(len(self._free))))
        samples = start + count == len(seq.token_ids)
        phase = "decode" if count == 1 and samples else "prefill"
        return ScheduledSequence(seq, phase, start, count, tuple(table), samples)

    def _release(self, request: Request) -> None:
        seq = request.sequences[0]
        self._free += self._tables.pop(seq.seq_id, [])
        seq.num_computed_tokens = 0

    def _is_done(self, request: Request) -> bool:
        return request.sequences[0].num_output_tokens >= request.params.max_tokens


def prompts(count: int, *, seed: int = 0, longest: int = 30) -> list[list[int]]:
    """Random prompts, the first of one token."""
    rng = random.Random(seed)
    lengths = [1] + [rng.randint(1, longest) for _ in range(count - 1)]
    return [[rng.randrange(1, VOCAB) for _ in range(length)] for length in lengths]


def make_request(prompt: list[int], name: str = "r", **params: Any) -> Request:
    """A request for the hand-written scheduler."""
    return Request.make(name, prompt, SamplingParams(**params))
