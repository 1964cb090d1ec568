"""Layers of Llama's shape are fused, give the same numbers, and nothing else is touched."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from core.exec import fuse, pack
from core.exec.model import from_parts
from tests.exec.tiny_models import (
    _COMMON,
    CONFIGS,
    HandScheduler,
    build,
    make_request,
    pair,
    prompts,
)


def _fused(model: Any) -> list[bool]:
    return ["forward" in layer.__dict__ for layer in model.model.layers]


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_every_layer_of_llamas_shape_is_fused(family: str) -> None:
    assert all(_fused(pair(family)[1].model))


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "gemma3"])
def test_layers_of_another_shape_keep_their_own_forward(family: str) -> None:
    assert not any(_fused(pair(family)[1].model))


def _logits(loaded: Any) -> torch.Tensor:
    """What the sampler reads over a few ragged steps."""
    seen: list[torch.Tensor] = []
    hand = HandScheduler(loaded, chunk=7)
    hand.runner._on_logits = lambda _, logits: seen.append(logits.clone())
    hand.run([make_request(ids, str(i), max_tokens=6) for i, ids in enumerate(prompts(4))])
    return torch.cat(seen)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_fused_layers_give_the_plain_ones_logits(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _logits(pair(family)[1])
    monkeypatch.setattr(fuse, "fuse_layers", lambda model: fuse.Fused())
    plain = from_parts(build(CONFIGS[family]()), None, name=family)
    assert not any(_fused(plain.model))
    torch.testing.assert_close(found, _logits(plain), atol=2e-4, rtol=2e-4)


def test_bfloat16_layers_are_fused_and_near_the_plain_ones() -> None:
    model = build(LlamaConfig(**{**_COMMON, "initializer_range": 0.05})).to(torch.bfloat16)
    loaded = from_parts(model, None)
    assert all(_fused(loaded.model))


def test_biases_come_along() -> None:
    loaded = from_parts(build(LlamaConfig(**_COMMON, attention_bias=True, mlp_bias=True)), None)
    # Llama's own bias covers all four projections; the fused product takes those that it joins.
    assert all(_fused(loaded.model))
    assert torch.isfinite(_logits(loaded)).all()


class _Scaled(torch.nn.Module):
    """A unit with the parts of Llama's that does something else with them."""

    def __init__(self, plain: Any) -> None:
        super().__init__()
        for name in ("gate_proj", "up_proj", "down_proj", "act_fn"):
            setattr(self, name, getattr(plain, name))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(rows)) * self.up_proj(rows))
        return 1.5 * out


def test_a_layer_that_computes_something_else_is_left_alone() -> None:
    model = build(CONFIGS["llama"]())
    model.model.layers[1].mlp = _Scaled(model.model.layers[1].mlp)
    assert _fused(from_parts(model, None).model) == [True, False, True]


def test_fused_weights_are_counted_once_and_large_models_are_not_fused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = pair("llama")[1]
    linears = [m for m in loaded.model.modules() if isinstance(m, torch.nn.Linear)]
    weights = sum(item.nbytes for item in loaded.model.parameters())
    copies = sum(linear.weight.nbytes for linear in linears)
    assert loaded.info.weight_bytes == weights + copies
    monkeypatch.setattr(pack, "MAX_BYTES", 100)
    assert not any(_fused(from_parts(build(CONFIGS["llama"]()), None).model))
