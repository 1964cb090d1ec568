"""KV in eight bits: float8 e4m3 numbers with a scale for each KV head.

A cache of dtype `FP8` holds value / scale, rounded to the nearest e4m3 number and at most 448 in
size; reading multiplies by the scale again. A scale for the whole tensor is one number repeated
for every head. It knows no cache and no kernel.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

__all__ = ["FP8", "KVScales", "expand", "make_scales", "quantise", "unit_scales"]

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


def unit_scales(num_kv_heads: int, device: torch.device | str) -> KVScales:
    """Scales of 1: numbers are stored as they are, rounded, and cut off at 448."""
    ones = torch.ones(num_kv_heads, device=device)
    return KVScales(ones, ones)


def quantise(values: Tensor, scale: Tensor) -> Tensor:
    """The e4m3 numbers that stand for the values.

    Args:
        values: `[num_tokens, num_kv_heads, head_dim]`.
        scale: `[num_kv_heads]`.
    """
    return (values.float() / scale[:, None]).clamp(-_LARGEST, _LARGEST).to(FP8)


def expand(codes: Tensor, output: Tensor) -> None:
    """Writes the numbers that bytes stand for, without their scales; changes the output.

    A look-up: on a CPU torch's own conversion takes five times as long, one number at a time.

    Args:
        codes: uint8 of any shape, contiguous.
        output: as many numbers, contiguous, of a type that holds every e4m3 number.
    """
    numbers = _numbers(output.dtype, output.device)
    torch.index_select(numbers, 0, codes.flatten().int(), out=output.view(-1))


@cache
def _numbers(dtype: torch.dtype, device: torch.device) -> Tensor:
    """What each of the 256 bytes stands for."""
    with torch.inference_mode(False):
        return torch.arange(256, dtype=torch.uint8).view(FP8).to(dtype).to(device)


def _scale(values: Tensor, per_head: bool) -> Tensor:
    largest = values.float().abs().amax((0, 2))  # [num_kv_heads]
    if not per_head:
        largest = largest.amax().expand_as(largest)
    return (largest / _LARGEST).clamp(min=torch.finfo(torch.float32).tiny).contiguous()
