"""Paged decode attention as its paper tells it: walk a sequence's block table, block by block.

numba compiles these loops for the processor. Nothing is gathered: keys and values are read where
they lie in the pool, once for all query heads that share them. Sequences need nothing of each
other, nor do KV heads, so threads can share them out.

Scores are kept in powers of two (the scale takes log2(e) in), as in the Triton kernels. It checks
nothing: `kernels.dispatch` does.
"""

from typing import Any

import numpy as np
from numba import njit, prange

from kernels.numba_math import COMPILE, LOG2_E, exp2, load, store, tanh

__all__ = ["decode", "decode_threaded"]

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
# So many sequences keep some threads busy without cutting any: a cut slot is read in pieces.
_ENOUGH = 6


@njit(**COMPILE)
def _scores(
    query: Any, key_cache: Any, table: Any, heads: Any, first: int, length: int, scores: Any
) -> None:
    """Scores of positions first..length-1, for every query head: `scores[h, position - first]`."""
    block_size, dim = key_cache.shape[1], key_cache.shape[3]
    per_kv = query.shape[0] // (heads[1] - heads[0])
    number, offset = first // block_size, first % block_size
    for column in range(length - first):
        slot = key_cache[table[number], offset]
        for head in range(heads[1] - heads[0]):
            key = slot[heads[0] + head]
            for h in range(head * per_kv, (head + 1) * per_kv):
                total = _ZERO
                for d in range(dim):
                    total += query[h, d] * load(key, d)
                scores[h, column] = total
        offset += 1
        if offset == block_size:
            number, offset = number + 1, 0


@njit(**COMPILE)
def _cap(scores: Any, softcap: Any) -> None:
    """Scores become softcap * tanh(score / softcap); they are in units of log2(e) meanwhile."""
    for h in range(scores.shape[0]):
        for n in range(scores.shape[1]):
            scores[h, n] = softcap * LOG2_E * tanh(scores[h, n] / (softcap * LOG2_E))


@njit(**COMPILE)
def _softmax(scores: Any) -> None:
    """Each row becomes weights that sum to 1."""
    for h in range(scores.shape[0]):
        row = scores[h]
        top = row[0]
        for n in range(row.shape[0]):
            top = max(top, row[n])
        total = _ZERO
        for n in range(row.shape[0]):
            row[n] = exp2(row[n] - top)
            total += row[n]
        share = _ONE / total
        for n in range(row.shape[0]):
            row[n] *= share


@njit(**COMPILE)
def _weighted_sum(
    weights: Any, value_cache: Any, table: Any, heads: Any, first: int, length: int, sums: Any
) -> None:
    """Adds every position's value, times its weight, to `sums`, `[query heads, head_dim]`."""
    block_size, dim = value_cache.shape[1], value_cache.shape[3]
    per_kv = sums.shape[0] // (heads[1] - heads[0])
    number, offset = first // block_size, first % block_size
    for column in range(length - first):
        slot = value_cache[table[number], offset]
        for head in range(heads[1] - heads[0]):
            value = slot[heads[0] + head]
            for h in range(head * per_kv, (head + 1) * per_kv):
                weight = weights[h, column]
                for d in range(dim):
                    sums[h, d] += weight * load(value, d)
        offset += 1
        if offset == block_size:
            number, offset = number + 1, 0


@njit(**COMPILE)
def _attend(
    query: Any,
    key_cache: Any,
    value_cache: Any,
    table: Any,
    heads: Any,
    length: int,
    scale: Any,
    window: int,
    softcap: Any,
    out: Any,
) -> None:
    """One token's attention in some KV heads; `query` and `out` are `[num_heads, head_dim]`."""
    dim = key_cache.shape[3]
    per_kv = query.shape[0] // key_cache.shape[2]
    before, count = heads[0] * per_kv, (heads[1] - heads[0]) * per_kv
    first = max(0, length - window)
    scaled = np.empty((count, dim), np.float32)
    for h in range(count):
        for d in range(dim):
            scaled[h, d] = load(query, (before + h, d)) * scale * LOG2_E
    scores = np.empty((count, length - first), np.float32)
    _scores(scaled, key_cache, table, heads, first, length, scores)
    if softcap > 0:
        _cap(scores, softcap)
    _softmax(scores)
    sums = np.zeros((count, dim), np.float32)
    _weighted_sum(scores, value_cache, table, heads, first, length, sums)
    for h in range(count):
        for d in range(dim):
            store(out, (before + h, d), sums[h, d])


@njit(**COMPILE)
def decode(
    query: Any,
    key_cache: Any,
    value_cache: Any,
    tables: Any,
    lengths: Any,
    rows: Any,
    scale: Any,
    window: int,
    softcap: Any,
    out: Any,
) -> None:
    """Attention of one new token of each of some sequences.

    Args:
        query: `[num_tokens, num_heads, head_dim]`.
        key_cache: `[num_blocks, block_size, num_kv_heads, head_dim]`.
        value_cache: as `key_cache`.
        tables: `[num_seqs, max_blocks]`.
        lengths: `[num_seqs]`, with the new token.
        rows: `[num_seqs]`, the row of each sequence's token in `query` and `out`.
        scale: factor on the scores, float32.
        window: positions that a token sees, itself the last of them.
        softcap: of the scores, float32; 0 is none.
        out: as `query`; changed in those rows.
    """
    heads = (0, key_cache.shape[2])
    for seq in range(lengths.shape[0]):
        row = rows[seq]
        _attend(
            query[row], key_cache, value_cache, tables[seq], heads, lengths[seq],
            scale, window, softcap, out[row],
        )  # fmt: skip


@njit(parallel=True, **COMPILE)
def decode_threaded(
    query: Any,
    key_cache: Any,
    value_cache: Any,
    tables: Any,
    lengths: Any,
    rows: Any,
    scale: Any,
    window: int,
    softcap: Any,
    out: Any,
) -> None:
    """As `decode`, on numba's threads; few sequences are cut by their KV heads."""
    kv_heads = key_cache.shape[2]
    parts = 1 if lengths.shape[0] >= _ENOUGH else kv_heads
    each = kv_heads // parts
    for item in prange(lengths.shape[0] * parts):
        seq, first = item // parts, (item % parts) * each
        row = rows[seq]
        _attend(
            query[row], key_cache, value_cache, tables[seq], (first, first + each), lengths[seq],
            scale, window, softcap, out[row],
        )  # fmt: skip
