"""KV in eight bits: float8 e4m3 numbers with a scale for each KV head.

A cache of dtype `FP8` holds value / scale, rounded to the nearest e4m3 number and at most 448 in
size; reading multiplies by the scale again. A scale for the whole tensor is one number repeated
for every head. It knows no cache and no kernel.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["FP8", "KVScales", "make_scales", "quantise"]

FP8 = torch.float8_e4m3fn
_LARGEST = 448.0


@dataclass(frozen=True, slots=True)
class KVScales:
    """Scales of one layer's cache, each `[num_kv_heads]` float32 on the cache's device."""

    key: Tensor
    value: Tensor


def make_scales(key: Tensor, value: Tensor, *, per_head: bool = True) -> KVScales:
    """Scales that use the whole range for what these keys and values hold.

    Args:
        key: `[num_tokens, num_kv_heads, head_dim]`.
        value: as `key`.
        per_head: one scale for each head, else one for all.
    """
    return KVScales(_scale(key, per_head), _scale(value, per_head))


def quantise(values: Tensor, scale: Tensor) -> Tensor:
    """The e4m3 numbers that stand for the values.

    Args:
        values: `[num_tokens, num_kv_heads, head_dim]`.
        scale: `[num_kv_heads]`.
    """
    return (values.float() / scale[:, None]).clamp(-_LARGEST, _LARGEST).to(FP8)


def _scale(values: Tensor, per_head: bool) -> Tensor:
    largest = values.float().abs().amax((0, 2))  # [num_kv_heads]
    if not per_head:
        largest = largest.amax().expand_as(largest)
    return (largest / _LARGEST).clamp(min=torch.finfo(torch.float32).tiny).contiguous()
