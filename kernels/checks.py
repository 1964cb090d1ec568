"""What a step's tensors must be, each fault in one sentence that names the tensor.

Faults are plain `ValueError`s: this folder knows nothing of the engine.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.fp8 import FP8, KVScales

__all__ = [
    "check_blocks",
    "check_caches",
    "check_indices",
    "check_lengths",
    "check_new_kv",
    "check_query",
    "check_range",
    "check_scales",
]

_INDEX_TYPES = (torch.int32, torch.int64)


def check_indices(slot_mapping: Tensor, block_tables: Tensor) -> None:
    """Shapes, dtypes and devices of the index tensors."""
    for name, tensor, ndim in (
        ("slot_mapping", slot_mapping, 1),
        ("block_tables", block_tables, 2),
    ):
        if tensor.ndim != ndim or tensor.dtype not in _INDEX_TYPES:
            raise ValueError(
                f"{name} must be {ndim}-dimensional int32 or int64, "
                f"it is {tensor.ndim}-dimensional {tensor.dtype}"
            )
    if slot_mapping.device != block_tables.device:
        raise ValueError(
            f"slot_mapping is on {slot_mapping.device}, block_tables on {block_tables.device}"
        )


def check_lengths(
    slot_mapping: Tensor,
    block_tables: Tensor,
    seq_lens: Sequence[int],
    q_lens: Sequence[int],
    block_size: int,
) -> None:
    """New tokens, contexts and block tables agree."""
    if not len(seq_lens) == len(q_lens) == block_tables.shape[0]:
        raise ValueError(
            f"{len(seq_lens)} seq_lens, {len(q_lens)} q_lens and {block_tables.shape[0]} "
            "block tables must be equally many"
        )
    if sum(q_lens) != slot_mapping.shape[0]:
        raise ValueError(f"{sum(q_lens)} new tokens need {slot_mapping.shape[0]} slots to match")
    room = block_tables.shape[1] * block_size
    for index, (seq_len, q_len) in enumerate(zip(seq_lens, q_lens, strict=True)):
        if not 1 <= q_len <= seq_len <= room:
            raise ValueError(
                f"sequence {index}: {q_len} new tokens of {seq_len} in a block table "
                f"of {room} slots"
            )


def check_range(name: str, tensor: Tensor, bound: int, *, lowest: int = 0) -> None:
    """Every entry is at least `lowest` and below `bound`; on a GPU this waits for it."""
    if tensor.numel() == 0:
        return
    low, high = (int(edge) for edge in tensor.aminmax())
    if low < lowest or high >= bound:
        raise ValueError(f"{name} holds {low} .. {high}, outside {lowest} .. {bound - 1}")


def check_caches(
    key_cache: Tensor, value_cache: Tensor, shape: tuple[int, int], backend: str
) -> None:
    """Two equal caches of the plan's (num_blocks, block_size), as the backend needs them."""
    if key_cache.ndim != 4 or key_cache.shape != value_cache.shape:
        raise ValueError(
            f"caches of shape {tuple(key_cache.shape)} and {tuple(value_cache.shape)} are not "
            "two equal [num_blocks, block_size, num_kv_heads, head_dim]"
        )
    if key_cache.shape[:2] != shape:
        raise ValueError(
            f"the plan was made for {shape[0]} blocks of {shape[1]} slots, "
            f"the cache has {key_cache.shape[0]} of {key_cache.shape[1]}"
        )
    if backend != "triton":
        return
    if not (key_cache.is_contiguous() and value_cache.is_contiguous()):
        raise ValueError("the Triton kernels need contiguous caches")
    if key_cache.shape[3] > 256:
        raise ValueError(
            f"head_dim {key_cache.shape[3]} is above 256, the most that the Triton kernels take; "
            "backend 'torch' takes any"
        )


def check_new_kv(key: Tensor, value: Tensor, cache: Tensor, num_tokens: int) -> None:
    """Keys and values of the step fit the cache."""
    wanted = (num_tokens, *cache.shape[2:])
    for name, tensor in (("key", key), ("value", value)):
        if tensor.shape != wanted:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, the step needs {wanted}")
        _check_kind(name, tensor, cache)


def check_query(query: Tensor, cache: Tensor, num_tokens: int, window: int | None) -> None:
    """Queries of the step fit the cache."""
    num_kv_heads, head_dim = cache.shape[2:]
    if query.ndim != 3 or query.shape[0] != num_tokens or query.shape[2] != head_dim:
        raise ValueError(
            f"query has shape {tuple(query.shape)}, "
            f"the step needs ({num_tokens}, heads, {head_dim})"
        )
    if query.shape[1] % num_kv_heads:
        raise ValueError(f"{query.shape[1]} query heads can't share {num_kv_heads} KV heads evenly")
    _check_kind("query", query, cache)
    if window is not None and window < 1:
        raise ValueError(f"sliding_window {window} must be at least 1")


def check_scales(cache: Tensor, scales: KVScales | None) -> None:
    """An fp8 cache has scales, one for each KV head; no other cache has any."""
    if (cache.dtype == FP8) != (scales is not None):
        raise ValueError(
            "an fp8 cache needs its scales" if scales is None
            else f"scales belong to an fp8 cache, this one is {cache.dtype}"
        )  # fmt: skip
    if scales is None:
        return
    for name, scale in (("key", scales.key), ("value", scales.value)):
        fits = scale.shape == cache.shape[2:3] and scale.is_contiguous()
        if not fits or scale.dtype != torch.float32 or scale.device != cache.device:
            raise ValueError(
                f"the {name} scales must be {cache.shape[2]} float32 numbers on {cache.device}, "
                f"they are {tuple(scale.shape)} {scale.dtype} on {scale.device}"
            )


def check_blocks(storage: Tensor, block_ids: Sequence[int], what: str) -> None:
    """All blocks are in `[caches, num_blocks, ...]`."""
    for block_id in block_ids:
        if not 0 <= block_id < storage.shape[1]:
            raise ValueError(
                f"{what} block {block_id} is outside the cache's {storage.shape[1]} blocks"
            )


def _check_kind(name: str, tensor: Tensor, cache: Tensor) -> None:
    same = tensor.dtype == cache.dtype or (cache.dtype == FP8 and tensor.is_floating_point())
    if not same or tensor.device != cache.device:
        raise ValueError(
            f"{name} is {tensor.dtype} on {tensor.device}, the cache is "
            f"{cache.dtype} on {cache.device}"
        )
