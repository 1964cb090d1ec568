"""Writing a step's keys and values into their slots, in one launch for K and V.

One program stores one token's K and V of a few heads. It knows slots, not blocks: a slot is
`block_id * block_size + offset`, and a negative slot belongs to a padding token, stored nowhere.
In an fp8 cache a value is stored as the nearest e4m3 number of value / scale.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.fp8 import KVScales
from kernels.triton_launch import on_device, power_of_two

__all__ = ["write_kernel", "write_kv"]

_ELEMENTS = 2048  # of K that a program stores


def write_kv(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    scales: KVScales | None = None,
    *,
    checked: bool = False,
) -> None:
    """Stores token i of the step in slot `slot_mapping[i]`; see `kernels.reference.write_kv`.

    Args:
        key: `[num_tokens, num_kv_heads, head_dim]`.
        value: as `key`.
        key_cache: `[num_blocks, block_size, num_kv_heads, head_dim]`, contiguous.
        value_cache: as `key_cache`.
        slot_mapping: `[num_tokens]`.
        scales: of an fp8 cache.
        checked: leave out slots past the cache's end.
    """
    num_tokens, num_heads, head_dim = key.shape
    if num_tokens == 0:
        return
    key, value = (item if item.stride(2) == 1 else item.contiguous() for item in (key, value))
    if scales is not None:
        key_cache, value_cache = key_cache.view(torch.uint8), value_cache.view(torch.uint8)
    dims = power_of_two(head_dim)
    heads = max(1, min(power_of_two(num_heads), _ELEMENTS // dims))
    with on_device(key):
        write_kernel[(num_tokens, triton.cdiv(num_heads, heads))](
            key, value, key_cache, value_cache, slot_mapping,
            scales.key if scales else key, scales.value if scales else key,
            key_cache.shape[0] * key_cache.shape[1],
            key.stride(0), key.stride(1), value.stride(0), value.stride(1),
            HEADS=num_heads, HEAD_DIM=head_dim, BLOCK_H=heads, BLOCK_D=dims,
            FP8=scales is not None, CHECKED=checked,
        )  # fmt: skip


@triton.jit
def write_kernel(
    key, value, key_cache, value_cache, slot_mapping, key_scale, value_scale, num_slots,
    key_token, key_head, value_token, value_head,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
    FP8: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """Program (token, group of heads)."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    stored = slot >= 0
    if CHECKED:
        stored = stored & (slot < num_slots)
    if stored:
        heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
        dims = tl.arange(0, BLOCK_D)
        real = (heads < HEADS)[:, None] & (dims < HEAD_DIM)[None, :]  # [BLOCK_H, BLOCK_D]
        source = key + token * key_token + heads[:, None] * key_head + dims[None, :]
        keys = tl.load(source, mask=real)
        source = value + token * value_token + heads[:, None] * value_head + dims[None, :]
        values = tl.load(source, mask=real)
        if FP8:
            by_head = tl.load(key_scale + heads, mask=heads < HEADS, other=1.0)
            keys = _to_e4m3(tl.div_rn(keys.to(tl.float32), by_head[:, None]))
            by_head = tl.load(value_scale + heads, mask=heads < HEADS, other=1.0)
            values = _to_e4m3(tl.div_rn(values.to(tl.float32), by_head[:, None]))
        place = slot * (HEADS * HEAD_DIM) + heads[:, None] * HEAD_DIM + dims[None, :]
        tl.store(key_cache + place, keys, mask=real)
        tl.store(value_cache + place, values, mask=real)


@triton.jit
def _to_e4m3(value):
    """The nearest float8 e4m3 number as a byte, ties to even, at most 448 in size.

    By hand, so that every architecture stores the same bytes. A number of at least 2^-6 keeps
    the top 3 of its 23 fraction bits, rounded, and its exponent with bias 7 instead of 127.
    Smaller ones are multiples of 2^-9, which adding 2^23 rounds to.
    """
    size = tl.minimum(tl.abs(value), 448.0)
    bits = size.to(tl.uint32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    small = (size * 512.0 + 8388608.0).to(tl.uint32, bitcast=True) & 0xFF
    code = tl.where(size < 0.015625, small, normal)
    code = tl.where(value != value, 0x7F, code)
    sign = (value.to(tl.uint32, bitcast=True) >> 31) << 7
    return (code | sign).to(tl.uint8)
