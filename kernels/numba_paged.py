"""The compiled CPU backend: decodes walk their block tables, prefills go torch's way.

A decode reads much and computes little, so reading blocks where they lie wins; a prefill computes
much, and torch's matrix products do that best. It owns a step's list of decodes and the calls of
the compiled loops with torch's memory; it checks nothing: `kernels.dispatch` does.

`usable` compiles everything for a dtype and compares it with the reference before anything relies
on it. Compiled code is kept beside these files (or in the user's cache folder), so only the first
start on a machine pays for it.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numba
import numpy as np
import torch
from torch import Tensor

from kernels import reference, torch_paged
from kernels.numba_decode import decode, decode_threaded
from kernels.numba_rows import divide_by_rms, rotate, write_slots

__all__ = [
    "Decodes", "divided_by_rms", "make_decodes", "paged_attention", "rotate_heads",
    "usable", "write_kv",
]  # fmt: skip

# Below so many products of a query with a key, sharing out costs more than it saves.
_MIN_PAIRS = 3000
_NO_WINDOW = 1 << 60
# numba's threads that wait as torch's do, ready for the next call. Its own pool, the layer that is
# left where there is no OpenMP, sleeps between calls and takes longer to wake than a step's work.
_QUICK_LAYERS = ("omp", "tbb")
# One step at a time: two that both want every thread would only wait for each other.
_one_caller = threading.Lock()
# Whether this process is the fork of another. It has none of that one's threads, and OpenMP ends
# a fork that asks for them.
_forked = False


@dataclass(frozen=True, slots=True)
class Decodes:
    """A step's sequences with one new token, in an order that shares them out evenly.

    Attributes:
        tables: `[num_decodes, max_blocks]`.
        lengths: `[num_decodes]`, context with the new token.
        rows: `[num_decodes]`, the packed row of each one's token.
        tokens: sum of the lengths.
    """

    tables: np.ndarray
    lengths: np.ndarray
    rows: np.ndarray
    tokens: int


def make_decodes(
    block_tables: Tensor, seq_lens: Sequence[int], q_lens: Sequence[int]
) -> Decodes | None:
    """The decodes of one step; None when there is none.

    Args:
        block_tables: `[num_seqs, max_blocks]` on the CPU.
        seq_lens: context of each sequence with its new tokens.
        q_lens: new tokens of each sequence.
    """
    news = np.asarray(q_lens)
    members = (news == 1).nonzero()[0]
    if not members.size:
        return None
    lengths = np.asarray(seq_lens)[members]
    # A thread takes a run of neighbours. Dealt out from long to short, the runs are equally long.
    ranked = np.argsort(-lengths, kind="stable")
    hands = torch.get_num_threads()
    order = np.concatenate([ranked[hand::hands] for hand in range(hands)])
    members = members[order]
    return Decodes(
        tables=np.ascontiguousarray(block_tables.numpy()[members], dtype=np.int64),
        lengths=lengths[order],
        rows=(news.cumsum() - news)[members],
        tokens=int(lengths.sum()),
    )


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    groups: Sequence[torch_paged.Group],
    decodes: Decodes | None,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention over each sequence's context; see `kernels.reference.paged_attention`.

    Args:
        query: `[num_tokens, num_heads, head_dim]`.
        key_cache: `[num_blocks, block_size, num_kv_heads, head_dim]`.
        value_cache: as `key_cache`.
        groups: the prefills, of `torch_paged.make_groups`.
        decodes: of `make_decodes`.
        scale: factor on the scores.
        sliding_window: a query sees itself and the window - 1 positions before it.
        softcap: scores become softcap * tanh(score / softcap).
    """
    if decodes is None:
        return torch_paged.paged_attention(
            query, key_cache, value_cache, groups, scale, sliding_window, softcap
        )
    if groups:
        out = torch_paged.paged_attention(
            query, key_cache, value_cache, groups, scale, sliding_window, softcap
        )
    else:
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
    inputs = (
        _array(query), _array(key_cache), _array(value_cache),
        decodes.tables, decodes.lengths, decodes.rows,
        np.float32(scale), sliding_window or _NO_WINDOW, np.float32(softcap or 0), _array(out),
    )  # fmt: skip
    threads = torch.get_num_threads()
    few = threads == 1 or decodes.tokens * query.shape[1] < _MIN_PAIRS
    if few or _forked or not _quick_threads():
        decode(*inputs)
    else:
        with _own_threads(threads):
            decode_threaded(*inputs)
    return out


def write_kv(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Stores token i of the step in slot `slot_mapping[i]`; see `kernels.reference.write_kv`."""
    write_slots(
        _array(key), _array(value), _array(key_cache), _array(value_cache), slot_mapping.numpy()
    )


def divided_by_rms(rows: Tensor, epsilon: float) -> Tensor:
    """Each row over its root mean square, `[num_tokens, width]`."""
    rows = rows.contiguous()
    out = torch.empty_like(rows)
    divide_by_rms(_array(rows), np.float32(epsilon), _array(out))
    return out


def rotate_heads(heads: Tensor, cos: Tensor, sin: Tensor, turned: int) -> None:
    """Turns the first heads of each token by its position, in place; `kernels.numba_rows.rotate`.

    Args:
        heads: `[num_tokens, heads, head_dim]`, contiguous.
        cos: `[num_tokens, head_dim]`.
        sin: as `cos`.
        turned: heads that turn.
    """
    rotate(_array(heads), _array(cos.contiguous()), _array(sin.contiguous()), turned)


@contextmanager
def _own_threads(threads: int) -> Iterator[None]:
    """One caller has numba's threads, as many as torch has; torch keeps its number."""
    with _one_caller:
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
        try:
            yield
        finally:
            # NOTE: OpenMP may be one and the same library for both, and numba tells it its number.
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)


def _note_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


@cache
def _quick_threads() -> bool:
    """Whether numba's threads answer quickly here."""
    try:
        with _own_threads(torch.get_num_threads()):
            _start_threads()  # then numba knows which kind it has
        layer: str = numba.threading_layer()  # type: ignore[attr-defined]
    except Exception:  # a layer that was asked for and isn't here: one thread needs none
        return False
    return layer in _QUICK_LAYERS


@numba.njit(parallel=True, cache=True)
def _start_threads() -> int:
    """A little work for all threads."""
    count = 0
    for number in numba.prange(64):
        count += number
    return count


@cache
def usable(dtype: torch.dtype) -> bool:
    """Whether the compiled loops run here and give the reference's numbers; compiles them.

    Some seconds on the first start of a machine, then the kept code is read.

    Args:
        dtype: float32 or bfloat16.
    """
    try:
        return all(
            _trial(dtype, tokens, alone)
            for tokens in (24, 1 + _MIN_PAIRS)
            for alone in (False, True)
        )
    except Exception:  # of any kind: a processor that LLVM lacks, damaged or unwritable kept code
        return False


def _trial(dtype: torch.dtype, length: int, alone: bool) -> bool:
    """One sequence of a length and a short one, written and attended to here and in plain torch.

    Args:
        dtype: of all tensors.
        length: of the longer sequence.
        alone: q, k and v don't lie side by side; numba compiles that apart.
    """
    size, heads, kv_heads, dim = 16, 4, 2, 16
    lengths = [length, 5]
    each = -(-length // size)
    tables = torch.arange(2 * each).flip(0).view(2, each)
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    caches = [random(2 * each, size, kv_heads, dim) for _ in range(2)]
    wanted_caches = [kept.clone() for kept in caches]
    joint = divided_by_rms(random(2, (heads + 2 * kv_heads) * dim), 1e-5).view(2, -1, dim)
    rotate_heads(joint, *_angles(dim, dtype), heads + kv_heads)
    query, key, value = torch.split(joint, [heads, kv_heads, kv_heads], dim=1)
    if alone:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    slots = torch.stack([table[(n - 1) // size] * size + (n - 1) % size
                         for table, n in zip(tables, lengths, strict=True)])  # fmt: skip
    write_kv(key, value, caches[0], caches[1], slots)
    reference.write_kv(key, value, wanted_caches[0], wanted_caches[1], slots)
    decodes = make_decodes(tables, lengths, [1, 1])
    found = paged_attention(query, caches[0], caches[1], (), decodes, 0.25)
    wanted = reference.paged_attention(
        query, wanted_caches[0], wanted_caches[1], tables, torch.tensor(lengths),
        torch.arange(3), 0.25,
    )  # fmt: skip
    bound = {torch.float32: 1e-4, torch.bfloat16: 2e-2}[dtype]
    return bool((found.float() - wanted.float()).norm() <= bound * wanted.float().norm())


def _angles(dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of two positions, `[2, dim]` each."""
    angles = torch.arange(2 * dim).view(2, dim) / dim
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _array(tensor: Tensor) -> np.ndarray:
    """The tensor's memory as numpy sees it; bfloat16 as its bits."""
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    return tensor.numpy()
