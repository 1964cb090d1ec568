"""Paged decode attention as its paper tells it: walk a sequence's block table, block by block.

numba compiles these loops for the processor. Nothing is gathered: keys and values are read where
they lie in the pool, once for all query heads that share them. One item of work is one KV head of
one sequence, so items need nothing of each other.

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


@njit(**COMPILE)
def _scores(
    query: Any, key_cache: Any, table: Any, head: int, first: int, length: int, scores: Any
) -> None:
    """Scores of positions first..length-1: `scores[h, position - first]` for every query head."""
    block_size, dim = key_cache.shape[1], key_cache.shape[3]
    for number in range(first // block_size, (length - 1) // block_size + 1):
        start = number * block_size
        for position in range(max(first, start), min(length, start + block_size)):
            key = key_cache[table[number], position - start, head]
            for h in range(query.shape[0]):
                total = _ZERO
                for d in range(dim):
                    total += query[h, d] * load(key, d)
                scores[h, position - first] = total


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
    weights: Any, value_cache: Any, table: Any, head: int, first: int, length: int, sums: Any
) -> None:
    """Adds every position's value, times its weight, to `sums`, `[query heads, head_dim]`."""
    block_size, dim = value_cache.shape[1], value_cache.shape[3]
    for number in range(first // block_size, (length - 1) // block_size + 1):
        start = number * block_size
        for position in range(max(first, start), min(length, start + block_size)):
            value = value_cache[table[number], position - start, head]
            for h in range(sums.shape[0]):
                weight = weights[h, position - first]
                for d in range(dim):
                    sums[h, d] += weight * load(value, d)


def _decode(
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
    num_kv_heads, dim = key_cache.shape[2], key_cache.shape[3]
    per_kv = query.shape[1] // num_kv_heads
    for item in prange(lengths.shape[0] * num_kv_heads):
        seq, head = item // num_kv_heads, item % num_kv_heads
        row, table, length = rows[seq], tables[seq], lengths[seq]
        first = max(0, length - window)
        scaled = np.empty((per_kv, dim), np.float32)
        for h in range(per_kv):
            for d in range(dim):
                scaled[h, d] = load(query, (row, head * per_kv + h, d)) * scale * LOG2_E
        scores = np.empty((per_kv, length - first), np.float32)
        _scores(scaled, key_cache, table, head, first, length, scores)
        if softcap > 0:
            _cap(scores, softcap)
        _softmax(scores)
        sums = np.zeros((per_kv, dim), np.float32)
        _weighted_sum(scores, value_cache, table, head, first, length, sums)
        for h in range(per_kv):
            for d in range(dim):
                store(out, (row, head * per_kv + h, d), sums[h, d])


decode = njit(**COMPILE)(_decode)
decode_threaded = njit(parallel=True, **COMPILE)(_decode)
