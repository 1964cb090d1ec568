"""Decode attention over contiguous memory: the peer that paging is measured against.

The same program as `kernels.triton_decode`, but a sequence's keys lie one after another: no block
table is read, nothing is looked up. Whatever time paging costs is the difference.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_decode import join_kernel
from kernels.triton_launch import needs_wide, on_device, power_of_two
from kernels.triton_parts import finish, load_tile, masked_scores, online_softmax
from kernels.tuning import Settings


def contiguous_decode(
    query: Tensor, keys: Tensor, values: Tensor, settings: Settings, splits: int, scale: float
) -> Tensor:
    """Attention of one query a sequence.

    Args:
        query: `[num_seqs, num_heads, head_dim]`.
        keys: `[num_seqs, length, num_kv_heads, head_dim]`.
        values: as `keys`.
        settings: as the paged kernel's.
        splits: shares of each context.
        scale: factor on the scores.
    """
    num_seqs, num_heads, head_dim = query.shape
    _, length, num_kv_heads, _ = keys.shape
    output = torch.empty_like(query)
    parts, lse = output, output
    if splits > 1:
        parts = query.new_empty((num_seqs, num_heads, splits, head_dim), dtype=torch.float32)
        lse = query.new_empty((num_seqs, num_heads, splits), dtype=torch.float32)
    group, dims = num_heads // num_kv_heads, max(16, power_of_two(head_dim))
    with on_device(query):
        contiguous_kernel[(num_seqs, num_kv_heads, splits)](
            query, keys, values, parts, lse, scale, length,
            HEADS=num_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=0, SPLITS=splits,
            SOFTCAP=False, FP8=False, NATIVE=False, CHECKED=False, WIDE=needs_wide(query),
            ROWS=max(16, power_of_two(group)), TILE=settings.tile, BLOCK_D=dims,
            num_warps=settings.num_warps, num_stages=settings.num_stages,
        )  # fmt: skip
        if splits > 1:
            order = torch.arange(num_seqs + 1, device=query.device)
            join_kernel[(num_seqs, num_heads)](
                parts, lse, order, order, output, HEADS=num_heads, HEAD_DIM=head_dim,
                SPLITS=splits, BLOCK_S=power_of_two(splits), BLOCK_D=dims,
            )  # fmt: skip
    return output


@triton.jit
def contiguous_kernel(
    query, key_cache, value_cache, parts, lse, scale, length,
    HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr, SOFTCAP: tl.constexpr, FP8: tl.constexpr, NATIVE: tl.constexpr,
    CHECKED: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (sequence, KV head, split)."""
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    rows = tl.arange(0, ROWS)
    heads = kv_head * GROUP + rows
    dims = tl.arange(0, BLOCK_D)
    real = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    place = query + (seq * HEADS + heads[:, None]) * HEAD_DIM + dims[None, :]
    queries = tl.load(place, mask=real, other=0.0)
    if WIDE:
        queries = queries.to(tl.float32)
    share = tl.cdiv(tl.cdiv(length, TILE), SPLITS) * TILE
    begin = split * share
    end = tl.minimum(begin + share, length)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    output = tl.zeros([ROWS, BLOCK_D], tl.float32)
    stride = (HEADS // GROUP) * HEAD_DIM
    for start in range(begin, end, TILE):
        positions = start + tl.arange(0, TILE)
        visible = positions < end
        slots = seq * length + positions
        keys = load_tile(
            key_cache + kv_head * HEAD_DIM, slots, visible, dims, stride, queries,
            HEAD_DIM, FP8, NATIVE,
        )  # fmt: skip
        values = load_tile(
            value_cache + kv_head * HEAD_DIM, slots, visible, dims, stride, queries,
            HEAD_DIM, FP8, NATIVE,
        )  # fmt: skip
        scores = masked_scores(queries, keys, visible[None, :], scale, 0.0, SOFTCAP)
        best, total, output = online_softmax(scores, values, best, total, output)
    output = finish(total, output)
    if SPLITS == 1:
        place = parts + (seq * HEADS + heads[:, None]) * HEAD_DIM + dims[None, :]
        tl.store(place, output.to(parts.dtype.element_ty), mask=real)
    else:
        row = (seq * HEADS + heads) * SPLITS + split
        seen = total > 0.0
        logs = tl.where(seen, best + tl.log2(tl.where(seen, total, 1.0)), float("-inf"))
        tl.store(lse + row, logs, mask=rows < GROUP)
        tl.store(parts + row[:, None] * HEAD_DIM + dims[None, :], output, mask=real)
