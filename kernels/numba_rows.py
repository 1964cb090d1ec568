"""Work on the rows of a decode step, one compiled loop each instead of several torch operators.

A step of few rows spends more time in calling operators than in what they do. These loops run on
one thread: sharing out so little would cost more than it gives. Rows are `[num_tokens, ...]`.
"""

from typing import Any

import numpy as np
from numba import njit

from kernels.numba_math import COMPILE, load, store

__all__ = ["divide_by_rms", "rotate", "write_slots"]

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


@njit(**COMPILE)
def divide_by_rms(rows: Any, epsilon: Any, out: Any) -> None:
    """Each row over its root mean square: RMSNorm (arXiv 1910.07467) without weights.

    Args:
        rows: `[num_tokens, width]`.
        epsilon: added to the mean square, float32.
        out: as `rows`; changed.
    """
    width = rows.shape[1]
    for row in range(rows.shape[0]):
        total = _ZERO
        for n in range(width):
            total += load(rows, (row, n)) * load(rows, (row, n))
        share = _ONE / np.sqrt(total / np.float32(width) + epsilon)
        for n in range(width):
            store(out, (row, n), load(rows, (row, n)) * share)


@njit(**COMPILE)
def _turn_head(head: Any, cos: Any, sin: Any, left: Any, right: Any) -> None:
    """One head, `[head_dim]`, in place; `left` and `right` have room for a half each."""
    # NOTE: slices, so that every index counts up from 0: numba would else look for negative ones,
    # and such a loop takes one number at a time.
    half = left.shape[0]
    out_left, out_right = head[:half], head[half:]
    for d in range(half):
        left[d] = load(out_left, d)
        right[d] = load(out_right, d)
    toward, across = cos[:half], sin[:half]
    for d in range(half):
        store(out_left, d, left[d] * load(toward, d) - right[d] * load(across, d))
    toward, across = cos[half:], sin[half:]
    for d in range(half):
        store(out_right, d, right[d] * load(toward, d) + left[d] * load(across, d))


@njit(**COMPILE)
def rotate(heads: Any, cos: Any, sin: Any, turned: int) -> None:
    """Rotary embedding (arXiv 2104.09864): the halves of a head are the coordinates that turn.

    Args:
        heads: `[num_tokens, heads, head_dim]`; changed.
        cos: `[num_tokens, head_dim]`, of the token's position.
        sin: as `cos`.
        turned: heads that turn; the others stay.
    """
    half = heads.shape[2] // 2
    kept = np.empty((2, half), np.float32)
    for token in range(heads.shape[0]):
        for head in range(turned):
            _turn_head(heads[token, head], cos[token], sin[token], kept[0], kept[1])


@njit(**COMPILE)
def write_slots(keys: Any, values: Any, key_cache: Any, value_cache: Any, slots: Any) -> None:
    """Stores token i in slot `slots[i]`; a padding token has a negative one and is not stored.

    Args:
        keys: `[num_tokens, num_kv_heads, head_dim]`.
        values: as `keys`.
        key_cache: `[num_blocks, block_size, num_kv_heads, head_dim]`; changed.
        value_cache: as `key_cache`; changed.
        slots: `[num_tokens]`.
    """
    block_size = key_cache.shape[1]
    for token in range(slots.shape[0]):
        if slots[token] >= 0:
            block, offset = slots[token] // block_size, slots[token] % block_size
            for head in range(keys.shape[1]):
                for d in range(keys.shape[2]):
                    key_cache[block, offset, head, d] = keys[token, head, d]
                    value_cache[block, offset, head, d] = values[token, head, d]
