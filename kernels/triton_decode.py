"""Paged attention of sequences with one new token each, split over the context.

Program (sequence, KV head, split) walks its share of the context in tiles. All query heads that
share the KV head (grouped-query attention) are rows of one small matrix, so that each K and V is
loaded once for all of them. Decode attention does little arithmetic per byte; its time is that of
reading K and V, and every multiprocessor has to read to use the memory's whole bandwidth.

A few sequences with long contexts would leave most multiprocessors idle, so a context is cut into
`num_splits` shares, and a second kernel joins their results: each share leaves its own attention
and lse = log2 of its sum of 2^score, and weighs 2^(lse - largest lse) in the whole. With one split
the first kernel writes the result itself.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.fp8 import KVScales
from kernels.triton_launch import has_native_fp8, needs_wide, on_device, power_of_two
from kernels.triton_parts import finish, load_tile, masked_scores, online_softmax, token_slots
from kernels.triton_step import Step
from kernels.tuning import Settings

__all__ = ["decode", "decode_kernel", "join_kernel"]

_FOREVER = 1 << 30  # a window that hides nothing


def decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    step: Step,
    output: Tensor,
    settings: Settings,
    num_splits: int,
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    scales: KVScales | None = None,
    checked: bool = False,
) -> None:
    """Attention of the step's decodes; writes their rows of `output`.

    Args:
        query: `[num_tokens, num_heads, head_dim]`.
        key_cache: `[num_blocks, block_size, num_kv_heads, head_dim]`; bytes when fp8.
        value_cache: as `key_cache`.
        step: which sequences decode, their lengths and block tables.
        output: as `query`, contiguous.
        settings: tile and warps.
        num_splits: shares of each context.
        scale: factor on the scores.
        sliding_window: the query sees itself and the window - 1 positions before it.
        softcap: cap on the scores.
        scales: of an fp8 cache.
        checked: never read outside the pool.
    """
    num_blocks, block_size, num_kv_heads, head_dim = key_cache.shape
    num_heads, num_seqs = query.shape[1], step.num_decodes
    group, dims = num_heads // num_kv_heads, max(16, power_of_two(head_dim))
    parts, lse = output, output
    if num_splits > 1:
        rows = (num_seqs, num_heads, num_splits)
        parts = query.new_empty((*rows, head_dim), dtype=torch.float32)
        lse = query.new_empty(rows, dtype=torch.float32)
    with on_device(query):
        decode_kernel[(num_seqs, num_kv_heads, num_splits)](
            query, key_cache, value_cache, step.block_tables, step.seq_lens,
            step.query_start_loc, step.decode_seqs, parts, lse,
            scales.key if scales else lse, scales.value if scales else lse,
            scale, softcap or 0.0, sliding_window or _FOREVER, num_blocks,
            query.stride(0), query.stride(1), step.block_tables.stride(0),
            HEADS=num_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
            SPLITS=num_splits, SOFTCAP=softcap is not None, FP8=scales is not None,
            NATIVE=has_native_fp8(query.device), CHECKED=checked, WIDE=needs_wide(query),
            ROWS=max(16, power_of_two(group)), TILE=settings.tile, BLOCK_D=dims,
            num_warps=settings.num_warps, num_stages=settings.num_stages,
        )  # fmt: skip
        if num_splits > 1:
            join_kernel[(num_seqs, num_heads)](
                parts, lse, step.query_start_loc, step.decode_seqs, output,
                HEADS=num_heads, HEAD_DIM=head_dim, SPLITS=num_splits,
                BLOCK_S=power_of_two(num_splits), BLOCK_D=dims,
            )  # fmt: skip


@triton.jit
def decode_kernel(
    query, key_cache, value_cache, block_tables, seq_lens, query_start_loc, decode_seqs,
    parts, lse, key_scale, value_scale, scale, softcap, window, num_blocks,
    query_token, query_head, table_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr, SOFTCAP: tl.constexpr, FP8: tl.constexpr, NATIVE: tl.constexpr,
    CHECKED: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (sequence, KV head, split): one share of a context for a group of heads."""
    seq = tl.load(decode_seqs + tl.program_id(0)).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    token = tl.load(query_start_loc + seq).to(tl.int64)
    seq_len = tl.load(seq_lens + seq).to(tl.int32)
    table = block_tables + seq * table_stride

    # The query heads of this KV head, padded to the 16 rows that a matrix product needs.
    rows = tl.arange(0, ROWS)
    heads = kv_head * GROUP + rows
    dims = tl.arange(0, BLOCK_D)
    real = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]  # [ROWS, BLOCK_D]
    place = query + token * query_token + heads[:, None] * query_head + dims[None, :]
    queries = tl.load(place, mask=real, other=0.0)
    if WIDE:
        queries = queries.to(tl.float32)
    if FP8:
        scale = scale * tl.load(key_scale + kv_head)

    # This split's share [begin, end) of what the window shows, in whole tiles.
    first = tl.maximum(seq_len - window, 0)
    share = tl.cdiv(tl.cdiv(seq_len - first, TILE), SPLITS) * TILE
    begin = first + split * share
    end = tl.minimum(begin + share, seq_len)

    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    output = tl.zeros([ROWS, BLOCK_D], tl.float32)
    stride = (HEADS // GROUP) * HEAD_DIM
    offsets = tl.arange(0, TILE)
    slots, visible = token_slots(
        table, begin + offsets, begin + offsets < end, num_blocks, BLOCK_SIZE, CHECKED
    )
    for start in range(begin, end, TILE):
        # The next tile's blocks are looked up now: K and V then never wait for a block table.
        ahead = start + TILE + offsets
        next_slots, next_visible = token_slots(
            table, ahead, ahead < end, num_blocks, BLOCK_SIZE, CHECKED
        )
        keys = load_tile(
            key_cache + kv_head * HEAD_DIM, slots, visible, dims, stride, queries,
            HEAD_DIM, FP8, NATIVE,
        )  # fmt: skip
        values = load_tile(
            value_cache + kv_head * HEAD_DIM, slots, visible, dims, stride, queries,
            HEAD_DIM, FP8, NATIVE,
        )  # fmt: skip
        scores = masked_scores(queries, keys, visible[None, :], scale, softcap, SOFTCAP)
        best, total, output = online_softmax(scores, values, best, total, output)
        slots, visible = next_slots, next_visible

    output = finish(total, output)
    if FP8:
        output = output * tl.load(value_scale + kv_head)
    if SPLITS == 1:
        place = parts + (token * HEADS + heads[:, None]) * HEAD_DIM + dims[None, :]
        tl.store(place, output.to(parts.dtype.element_ty), mask=real)
    else:
        row = (tl.program_id(0).to(tl.int64) * HEADS + heads) * SPLITS + split
        seen = total > 0.0  # an empty share has no logarithm, and no part in the whole
        logs = tl.where(seen, best + tl.log2(tl.where(seen, total, 1.0)), float("-inf"))
        tl.store(lse + row, logs, mask=rows < GROUP)
        tl.store(parts + row[:, None] * HEAD_DIM + dims[None, :], output, mask=real)


@triton.jit
def join_kernel(
    parts, lse, query_start_loc, decode_seqs, output,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (sequence, head): joins the splits' results."""
    head = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * HEADS + head
    splits = tl.arange(0, BLOCK_S)
    dims = tl.arange(0, BLOCK_D)
    logs = tl.load(lse + row * SPLITS + splits, mask=splits < SPLITS, other=float("-inf"))
    best = tl.max(logs, 0)
    weights = tl.exp2(logs - tl.where(best == float("-inf"), 0.0, best))  # [BLOCK_S]
    place = parts + (row * SPLITS + splits[:, None]) * HEAD_DIM + dims[None, :]
    part = tl.load(place, mask=(splits < SPLITS)[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    total = tl.sum(weights, 0)
    joined = tl.sum(weights[:, None] * part, 0) / tl.where(total == 0.0, 1.0, total)
    token = tl.load(query_start_loc + tl.load(decode_seqs + tl.program_id(0))).to(tl.int64)
    place = output + (token * HEADS + head) * HEAD_DIM + dims
    tl.store(place, joined.to(output.dtype.element_ty), mask=dims < HEAD_DIM)
