"""How much attention each block gets: what a reader sees as the block's weight.

Program (sequence, KV head, block) scores one block's tokens for the sequence's last query and
leaves their largest score and the sum of 2^(score - largest) for each query head. A row's softmax
is then put together from its blocks in plain torch: a block is to the row what a tile is to
online softmax. It reads K once more, so it runs only when someone looks.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.fp8 import KVScales
from kernels.triton_launch import has_native_fp8, needs_wide, on_device, power_of_two
from kernels.triton_parts import load_tile, masked_scores, token_slots
from kernels.triton_step import Step

__all__ = ["block_mass", "mass_kernel"]

_FOREVER = 1 << 30  # a window that hides nothing


def block_mass(
    query: Tensor,
    key_cache: Tensor,
    step: Step,
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    scales: KVScales | None = None,
    checked: bool = False,
) -> Tensor:
    """Attention weight of each block for each sequence's last query.

    Args:
        query: `[num_tokens, num_heads, head_dim]`.
        key_cache: `[num_blocks, block_size, num_kv_heads, head_dim]`; bytes when fp8.
        step: lengths and block tables.
        scale: factor on the scores.
        sliding_window: the query sees itself and the window - 1 positions before it.
        softcap: cap on the scores.
        scales: of an fp8 cache.
        checked: never read outside the pool.

    Returns:
        `[num_seqs, num_heads, max_blocks]` float32; a row sums to 1.
    """
    num_blocks, block_size, num_kv_heads, head_dim = key_cache.shape
    num_heads = query.shape[1]
    num_seqs, max_blocks = step.block_tables.shape
    best = query.new_empty((num_seqs, num_heads, max_blocks), dtype=torch.float32)
    total = torch.empty_like(best)
    with on_device(query):
        mass_kernel[(num_seqs, num_kv_heads, max_blocks)](
            query, key_cache, step.block_tables, step.seq_lens, step.query_start_loc,
            best, total, scales.key if scales else best,
            scale, softcap or 0.0, sliding_window or _FOREVER, num_blocks,
            query.stride(0), query.stride(1), step.block_tables.stride(0), max_blocks,
            HEADS=num_heads, GROUP=num_heads // num_kv_heads, HEAD_DIM=head_dim,
            BLOCK_SIZE=block_size, SOFTCAP=softcap is not None, FP8=scales is not None,
            NATIVE=has_native_fp8(query.device), CHECKED=checked, WIDE=needs_wide(query),
            ROWS=max(16, power_of_two(num_heads // num_kv_heads)),
            TILE=min(64, max(16, power_of_two(block_size))),
            BLOCK_D=max(16, power_of_two(head_dim)),
        )  # fmt: skip
    weights = total * torch.exp2(best - best.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)


@triton.jit
def mass_kernel(
    query, key_cache, block_tables, seq_lens, query_start_loc, best_out, total_out, key_scale,
    scale, softcap, window, num_blocks, query_token, query_head, table_stride, max_blocks,
    HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SOFTCAP: tl.constexpr, FP8: tl.constexpr, NATIVE: tl.constexpr, CHECKED: tl.constexpr,
    WIDE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (sequence, KV head, block)."""
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    token = tl.load(query_start_loc + seq + 1).to(tl.int64) - 1
    seq_len = tl.load(seq_lens + seq).to(tl.int32)
    table = block_tables + seq * table_stride
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

    begin = tl.program_id(2) * BLOCK_SIZE
    end = tl.minimum(begin + BLOCK_SIZE, seq_len)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for start in range(begin, end, TILE):
        positions = start + tl.arange(0, TILE)
        inside = (positions < end) & (positions >= seq_len - window)
        slots, visible = token_slots(table, positions, inside, num_blocks, BLOCK_SIZE, CHECKED)
        keys = load_tile(
            key_cache + kv_head * HEAD_DIM, slots, visible, dims, (HEADS // GROUP) * HEAD_DIM,
            queries, HEAD_DIM, FP8, NATIVE,
        )  # fmt: skip
        scores = masked_scores(queries, keys, visible[None, :], scale, softcap, SOFTCAP)
        new_best = tl.maximum(best, tl.max(scores, 1))
        pivot = tl.where(new_best == float("-inf"), 0.0, new_best)
        total = total * tl.exp2(best - pivot) + tl.sum(tl.exp2(scores - pivot[:, None]), 1)
        best = new_best
    place = (seq * HEADS + heads) * max_blocks + tl.program_id(2)
    tl.store(best_out + place, best, mask=rows < GROUP)
    tl.store(total_out + place, total, mask=rows < GROUP)
