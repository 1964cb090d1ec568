"""Paged attention of sequences with several new tokens: prompts, or chunks of them.

The new tokens of all sequences lie packed one after another. Each sequence is cut into pieces of
a few tokens; program (piece, KV head) computes one piece for all query heads of that KV head. The
rows of its matrix are (token, head) pairs: row m is head m % GROUP of token m // GROUP, so that
grouped-query heads share one load of K and V here too.

A chunk's keys are the blocks that earlier steps wrote and those of the chunk itself, which were
written just before; position in the sequence is all that causality needs to know.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.fp8 import KVScales
from kernels.triton_launch import has_native_fp8, needs_wide, on_device, power_of_two
from kernels.triton_parts import finish, load_tile, masked_scores, online_softmax, token_slots
from kernels.triton_step import Step
from kernels.tuning import Settings

__all__ = ["prefill", "prefill_kernel"]

_FOREVER = 1 << 30  # a window that hides nothing


def prefill(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    step: Step,
    output: Tensor,
    settings: Settings,
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    scales: KVScales | None = None,
    checked: bool = False,
) -> None:
    """Attention of the step's sequences with several new tokens; see `triton_decode.decode`."""
    num_blocks, block_size, num_kv_heads, head_dim = key_cache.shape
    num_heads = query.shape[1]
    group = num_heads // num_kv_heads
    rows = max(16, settings.rows, power_of_two(group))
    tokens = rows // group  # of a piece
    pieces = step.pieces(tokens)  # [pieces, 2]
    with on_device(query):
        prefill_kernel[(pieces.shape[0], num_kv_heads)](
            query, key_cache, value_cache, step.block_tables, step.seq_lens,
            step.query_start_loc, pieces, output,
            scales.key if scales else output, scales.value if scales else output,
            scale, softcap or 0.0, sliding_window or _FOREVER, num_blocks,
            query.stride(0), query.stride(1), step.block_tables.stride(0),
            HEADS=num_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
            SOFTCAP=softcap is not None, FP8=scales is not None,
            NATIVE=has_native_fp8(query.device), CHECKED=checked, WIDE=needs_wide(query),
            TOKENS=tokens, ROWS=rows, TILE=settings.tile,
            BLOCK_D=max(16, power_of_two(head_dim)),
            num_warps=settings.num_warps, num_stages=settings.num_stages,
        )  # fmt: skip


@triton.jit
def prefill_kernel(
    query, key_cache, value_cache, block_tables, seq_lens, query_start_loc, pieces, output,
    key_scale, value_scale, scale, softcap, window, num_blocks,
    query_token, query_head, table_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SOFTCAP: tl.constexpr, FP8: tl.constexpr, NATIVE: tl.constexpr, CHECKED: tl.constexpr,
    WIDE: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (piece, KV head): up to TOKENS new tokens of one sequence."""
    seq = tl.load(pieces + 2 * tl.program_id(0)).to(tl.int64)
    first_new = tl.load(pieces + 2 * tl.program_id(0) + 1).to(tl.int32)
    kv_head = tl.program_id(1)
    start_row = tl.load(query_start_loc + seq).to(tl.int64)
    q_len = (tl.load(query_start_loc + seq + 1) - start_row).to(tl.int32)
    context = tl.load(seq_lens + seq).to(tl.int32) - q_len  # tokens before the new ones
    table = block_tables + seq * table_stride

    rows = tl.arange(0, ROWS)
    new = first_new + rows // GROUP  # which new token a row is
    heads = kv_head * GROUP + rows % GROUP
    dims = tl.arange(0, BLOCK_D)
    live = (rows < TOKENS * GROUP) & (new < q_len)
    real = live[:, None] & (dims < HEAD_DIM)[None, :]  # [ROWS, BLOCK_D]
    place = (start_row + new[:, None]) * query_token + heads[:, None] * query_head + dims[None, :]
    queries = tl.load(query + place, mask=real, other=0.0)
    if WIDE:
        queries = queries.to(tl.float32)
    if FP8:
        scale = scale * tl.load(key_scale + kv_head)

    # From the first key that the first token's window shows to the last token itself.
    begin = tl.maximum(context + first_new - window + 1, 0)
    end = context + tl.minimum(first_new + TOKENS, q_len)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, BLOCK_D], tl.float32)
    stride = (HEADS // GROUP) * HEAD_DIM
    offsets = tl.arange(0, TILE)
    slots, known = token_slots(
        table, begin + offsets, begin + offsets < end, num_blocks, BLOCK_SIZE, CHECKED
    )
    for start in range(begin, end, TILE):
        # The next tile's blocks are looked up now: K and V then never wait for a block table.
        ahead = start + TILE + offsets
        next_slots, next_known = token_slots(
            table, ahead, ahead < end, num_blocks, BLOCK_SIZE, CHECKED
        )
        keys = load_tile(
            key_cache + kv_head * HEAD_DIM, slots, known, dims, stride, queries,
            HEAD_DIM, FP8, NATIVE,
        )  # fmt: skip
        values = load_tile(
            value_cache + kv_head * HEAD_DIM, slots, known, dims, stride, queries,
            HEAD_DIM, FP8, NATIVE,
        )  # fmt: skip
        behind = (context + new)[:, None] - (start + offsets)[None, :]  # how far back a key is
        visible = known[None, :] & (behind >= 0) & (behind < window)  # [ROWS, TILE]
        scores = masked_scores(queries, keys, visible, scale, softcap, SOFTCAP)
        best, total, result = online_softmax(scores, values, best, total, result)
        slots, known = next_slots, next_known

    result = finish(total, result)
    if FP8:
        result = result * tl.load(value_scale + kv_head)
    place = ((start_row + new[:, None]) * HEADS + heads[:, None]) * HEAD_DIM + dims[None, :]
    tl.store(output + place, result.to(output.dtype.element_ty), mask=real)
