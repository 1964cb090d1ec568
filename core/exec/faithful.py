"""Which models the paged engine can run so that their tokens stay their own.

Some facts stand in the configuration (recurrent layers, an encoder, chunked attention); the rest
shows only when the model runs: a trial forward records what reaches the attention function, and
its logits must be those of the model's own eager attention. A model that fails is refused with
the reason. It knows no cache and no engine.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from core.errors import ModelError
from kernels import dispatch

__all__ = ["check_config", "check_model", "layer_windows", "longest_context"]

_PROBE_NAME = "glassblock_probe"
_PROBE_TOKENS = 12
_LAYER_KINDS = {"full_attention", "sliding_attention", "attention"}
# Keywords that change the result of attention and that the kernels don't honour.
_UNKNOWN = ("s_aux", "sinks", "position_bias", "alibi", "head_mask", "rel_pos_bias")
_RECURRENT = ("mamba", "linear_attention", "recurrent", "conv", "ssm", "rwkv")


@dataclass(frozen=True, slots=True)
class _Call:
    layer: int
    query_shape: tuple[int, ...]
    key_shape: tuple[int, ...]
    value_shape: tuple[int, ...]
    window: int | None
    causal: bool
    unknown: str | None


_calls: ContextVar[list[_Call] | None] = ContextVar("calls", default=None)


def check_config(name: str, config: Any) -> None:
    """Refuses what the configuration rules out.

    Raises:
        ModelError: the model can't be run faithfully.
    """
    text = config.get_text_config(decoder=True)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError("model_encoder_decoder", name=name)
    kinds = {str(kind) for kind in getattr(text, "layer_types", None) or ()}
    if "chunked_attention" in kinds or getattr(text, "attention_chunk_size", None):
        raise ModelError("model_chunked", name=name)
    recurrent = sorted(kind for kind in kinds - _LAYER_KINDS if kind.startswith(_RECURRENT))
    if recurrent or getattr(text, "model_type", "").startswith(("mamba", "rwkv", "xlstm")):
        raise ModelError("model_recurrent", name=name)
    if kinds - _LAYER_KINDS:
        raise ModelError("model_layer_kind", name=name, kind=sorted(kinds - _LAYER_KINDS)[0])
    if getattr(text, "num_kv_shared_layers", 0):
        raise ModelError("model_shared_kv", name=name)
    if getattr(text, "use_bidirectional_attention", None) not in (None, False):
        raise ModelError("model_not_causal", name=name)


def check_model(name: str, model: Any) -> tuple[int, int]:
    """Runs the model once and refuses it when attention isn't what the kernels compute.

    Returns:
        KV heads and head_dim, as they reach the attention function.

    Raises:
        ModelError: the model can't be run faithfully.
    """
    if getattr(model, "_is_stateful", False):
        raise ModelError("model_recurrent", name=name)
    text = model.config.get_text_config(decoder=True)
    device = next(model.parameters()).device
    ids = torch.arange(1, 1 + _PROBE_TOKENS, device=device) % text.vocab_size
    with torch.inference_mode():
        with _attention(model, _PROBE_NAME), _recording() as calls:
            seen = _logits(name, model, ids)
        _check_calls(name, calls, text)
        with _attention(model, "eager"):
            wanted = _logits(name, model, ids)
    error = (seen - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp(min=1e-6)
    # Rounding differs between the two paths, more so in 16 bits, where an expert may flip too.
    bound = 1e-3 if model.dtype == torch.float32 else 0.15
    if not bool(error.median() <= bound):
        raise ModelError("model_differs", name=name)
    return calls[0].key_shape[1], calls[0].key_shape[3]


def layer_windows(config: Any) -> tuple[int | None, ...]:
    """Each layer's sliding window according to the configuration."""
    text = config.get_text_config(decoder=True)
    layers = int(text.num_hidden_layers)
    window = getattr(text, "sliding_window", None)
    if not window or getattr(text, "use_sliding_window", True) is False:
        return (None,) * layers
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        return (int(window),) * layers
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)


def longest_context(config: Any) -> int:
    """The longest context that the model was made for.

    Rotary embeddings that rescale with the longest sequence of a batch are faithful only up to
    the length at which they start to: past it, one request would change another's tokens.
    """
    text = config.get_text_config(decoder=True)
    longest = int(getattr(text, "max_position_embeddings", None) or 2048)
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        longest = min(longest, int(rope.get("original_max_position_embeddings") or longest))
    return longest


def _check_calls(name: str, calls: list[_Call], text: Any) -> None:
    if sorted(call.layer for call in calls) != list(range(text.num_hidden_layers)):
        raise ModelError("model_ignores_attention", name=name)
    for call in calls:
        if call.unknown is not None:
            code = "model_sinks" if call.unknown in ("s_aux", "sinks") else "model_attention_extra"
            raise ModelError(code, name=name, extra=call.unknown)
        if not call.causal:
            raise ModelError("model_not_causal", name=name)
        if call.key_shape != calls[0].key_shape or call.value_shape != call.key_shape:
            raise ModelError("model_mixed_heads", name=name)
    windows = tuple(call.window for call in sorted(calls, key=lambda call: call.layer))
    if windows != layer_windows(text):
        raise ModelError("model_window", name=name)


def _logits(name: str, model: Any, ids: Tensor) -> Tensor:
    """`[tokens, vocab]`, float32."""
    positions = torch.arange(len(ids), device=ids.device)
    try:
        output = model(input_ids=ids[None], position_ids=positions[None], use_cache=False)
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError) as fault:
        detail = str(fault).partition("\n")[0]
        raise ModelError("model_no_forward", name=name, detail=detail) from fault
    logits: Tensor = output.logits[0].float()
    return logits


@contextmanager
def _attention(model: Any, implementation: str) -> Iterator[None]:
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def _recording() -> Iterator[list[_Call]]:
    calls: list[_Call] = []
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


def _probe_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Records the call and attends through a one-sequence paged cache."""
    calls = _calls.get()
    if calls is not None:
        extra = [name for name in _UNKNOWN if others.get(name) is not None]
        calls.append(
            _Call(
                layer=int(module.layer_idx),
                query_shape=tuple(query.shape),
                key_shape=tuple(key.shape),
                value_shape=tuple(value.shape),
                window=sliding_window,
                causal=bool(getattr(module, "is_causal", True)),
                unknown=extra[0] if extra else None,
            )
        )
    tokens = query.shape[2]
    plan = dispatch.prepare(
        torch.arange(tokens, device=query.device),
        torch.zeros((1, 1), dtype=torch.int64, device=query.device),
        [tokens],
        [tokens],
        num_blocks=1,
        block_size=tokens,
    )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    caches = (key.transpose(1, 2).contiguous(), value.transpose(1, 2).contiguous())
    queries = query[0].transpose(0, 1)  # [tokens, heads, head_dim]
    if value.shape[-1] != key.shape[-1]:  # refused afterwards; the shape is all that matters
        return queries.new_zeros(1, tokens, query.shape[1], value.shape[-1]), None
    output = dispatch.paged_attention(queries, *caches, plan, scale, sliding_window, softcap)
    return output[None], None


AttentionInterface.register(_PROBE_NAME, _probe_forward)
