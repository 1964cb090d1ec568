"""Whole engines with random models and settings: every CPU backend gives the reference's tokens."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from core.config import EngineConfig
from core.exec.build import build_engine
from core.exec.model import LoadedModel, from_parts
from core.request import SamplingParams
from core.trace.verify import verify
from kernels import dispatch
from tests.exec.test_tokenizer import CODECS
from tests.exec.tiny_models import CONFIGS, VOCAB, build


def random_model(rng: random.Random) -> PreTrainedConfig:
    """Of any family, with odd numbers of heads and sizes that are no powers of two."""
    kv_heads, dim = rng.choice([1, 2, 3]), rng.choice([2, 6, 10, 12, 34])
    heads = kv_heads * rng.choice([1, 2, 3, 5])
    shape: dict[str, Any] = {
        "vocab_size": VOCAB, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "hidden_size": heads * dim, "head_dim": dim, "intermediate_size": 40,
        "num_hidden_layers": 2, "initializer_range": 0.3, "max_position_embeddings": 512,
        "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip
    window = rng.choice([1, 2, 5, 9, 40])
    makers = {
        "llama": lambda: LlamaConfig(**shape, attention_bias=rng.random() < 0.5),
        "mistral": lambda: MistralConfig(**shape, sliding_window=window),
        "qwen3": lambda: Qwen3Config(**shape),
        "gemma2": lambda: Gemma2Config(**shape, sliding_window=window, attn_logit_softcapping=2.0),
        "gemma3": lambda: Gemma3TextConfig(**shape, sliding_window=window),
        "gpt2": lambda: GPT2Config(
            vocab_size=VOCAB, n_embd=heads * 5, n_layer=2, n_head=heads, n_positions=512,
            bos_token_id=1, eos_token_id=None, initializer_range=0.3,
        ),
    }  # fmt: skip
    config: PreTrainedConfig = makers[rng.choice([name for name in CONFIGS if name in makers])]()
    return config


def random_settings(rng: random.Random) -> EngineConfig:
    """A pool that is often too small for all at once."""
    size, semantics = rng.choice([1, 3, 16, 64, 256]), rng.choice(["paper", "v1"])
    longest = -(-320 // size)
    settings: dict[str, Any] = {
        "block_size": size, "semantics": semantics, "max_model_len": 320,
        "max_num_batched_tokens": rng.choice([16, 40, 512]), "max_num_seqs": 8,
    }  # fmt: skip
    if rng.random() < 0.25:
        return EngineConfig(**settings, allocator="contiguous", num_blocks=8 * (longest + 1))
    swaps = semantics == "paper" and rng.random() < 0.6
    return EngineConfig(
        **settings,
        num_blocks=3 * longest + 3,
        num_host_blocks=12 * longest,
        preemption="swap" if swaps else "recompute",
        prefix_caching=rng.random() < 0.5,
    )


def random_requests(rng: random.Random, semantics: str) -> list[tuple[list[int], SamplingParams]]:
    """Prompts that often begin alike; samples, and beams where there are any."""
    start = [rng.randrange(1, VOCAB) for _ in range(40)]
    kinds: list[dict[str, Any]] = [{}, {"n": 3}, {"temperature": 0.8, "top_p": 0.9, "n": 2}]
    kinds += [{"beam_width": 3}] if semantics == "paper" else []
    requests = []
    for _ in range(rng.randint(2, 7)):
        own = [rng.randrange(1, VOCAB) for _ in range(rng.choice([1, 3, 30, 150]))]
        params = SamplingParams(max_tokens=rng.randint(1, 24), ignore_eos=True, **rng.choice(kinds))
        requests.append((start[: rng.choice([0, 17, 40])] + own, params))
    return requests


def load(config: PreTrainedConfig) -> LoadedModel:
    return replace(from_parts(build(config), None), tokenizer=CODECS["byte level"]._tokenizer)


@pytest.mark.parametrize("seed", range(12))
def test_random_engines_give_the_tokens_of_the_reference(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    model, settings = random_model(rng), random_settings(rng)
    requests = random_requests(rng, settings.semantics)
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "has_compiled", lambda dtype: False)
        plain = load(model)  # its layers compute without compiled loops too
    loaded = load(model)

    def tokens(used: LoadedModel, backend: dispatch.Backend) -> list[list[int]]:
        engine = build_engine(used, settings, backend=backend)
        for prompt, params in requests:
            engine.add_request(prompt, params)
        assert not [record.error for record in engine.run() if record.error]
        engine.check()
        assert verify(engine.trace()).ok
        return [list(one.token_ids) for output in engine.outputs() for one in output.outputs]

    wanted = tokens(plain, "reference")
    before = torch.get_num_threads()
    torch.set_num_threads(1 + seed % 3)
    try:
        assert tokens(loaded, "numba") == wanted
        assert tokens(loaded, "torch") == wanted
    finally:
        torch.set_num_threads(before)
