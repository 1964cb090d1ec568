"""The attention function that transformers calls in every layer: writes K and V, then attends.

The step's tensors come as keywords of the model's own call (`kv_tensors`, `batch_inputs`), so
that two engines can run in two threads. It does not know where the blocks came from.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from core.exec.batch import BatchInputs
from core.exec.kv_tensors import KVTensors
from kernels import dispatch

__all__ = ["ATTENTION_NAME", "paged_attention_forward"]

ATTENTION_NAME = "glassblock"


def paged_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    kv_tensors: KVTensors,
    batch_inputs: BatchInputs,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """One layer's attention over the paged cache.

    Args:
        module: the attention layer; `layer_idx` names its cache.
        query: `[1, num_heads, num_tokens, head_dim]`, after rotary embedding.
        key: `[1, num_kv_heads, num_tokens, head_dim]`.
        value: as `key`.
        attention_mask: None; the block tables say what a token sees.
        kv_tensors: the cache; changed.
        batch_inputs: the step.
        scaling: factor on the scores; None is head_dim ** -0.5.
        sliding_window: the layer's window.
        softcap: the layer's cap on scores.

    Returns:
        `[1, num_tokens, num_heads, head_dim]` and no weights.
    """
    key_cache, value_cache = kv_tensors.layer(module.layer_idx)  # type: ignore[arg-type]
    plan = batch_inputs.plan
    keys, values = key[0].transpose(0, 1), value[0].transpose(0, 1)  # [num_tokens, KV heads, dim]
    scales = kv_tensors.scales
    dispatch.write_kv(keys, values, key_cache, value_cache, plan, scales)
    queries = query[0].transpose(0, 1)  # [num_tokens, num_heads, head_dim]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    output = dispatch.paged_attention(
        queries, key_cache, value_cache, plan, scale, sliding_window, softcap, scales
    )
    return output[None], None


AttentionInterface.register(ATTENTION_NAME, paged_attention_forward)
