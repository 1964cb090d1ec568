"""The door to the kernels: checks a step's tensors once, then runs the chosen backend.

`prepare` checks shapes, ranges and devices and does the index work of a step; `write_kv` and
`paged_attention` then run for every layer with that plan and check only what a layer can change.
Faults are plain `ValueError`s: this folder knows nothing of the engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kernels import reference, torch_paged

__all__ = ["Backend", "KernelPlan", "copy_blocks", "paged_attention", "prepare", "write_kv"]

Backend = Literal["auto", "reference", "torch"]
_INDEX_TYPES = (torch.int32, torch.int64)


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """One step's checked index tensors, shared by all layers.

    Attributes:
        backend: the backend that runs.
        slot_mapping: `[num_tokens]`.
        block_tables: `[num_seqs, max_blocks]`.
        seq_lens: `[num_seqs]`.
        query_start_loc: `[num_seqs + 1]`.
        groups: the padded batches of the torch backend, empty for the reference.
    """

    backend: Literal["reference", "torch"]
    cache_shape: tuple[int, int]
    slot_mapping: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor
    groups: tuple[torch_paged.Group, ...]

    @property
    def num_tokens(self) -> int:
        """Packed tokens of the step."""
        return self.slot_mapping.shape[0]


def prepare(
    slot_mapping: Tensor,
    block_tables: Tensor,
    seq_lens: Sequence[int],
    q_lens: Sequence[int],
    *,
    num_blocks: int,
    block_size: int,
    backend: Backend = "auto",
) -> KernelPlan:
    """Checks a step and does its index work.

    Args:
        slot_mapping: `[num_tokens]`, the slot that each new token is stored in.
        block_tables: `[num_seqs, max_blocks]`; entries past a sequence's end may be anything in
            range.
        seq_lens: context of each sequence with its new tokens.
        q_lens: new tokens of each sequence.
        num_blocks: blocks in the caches.
        block_size: slots in a block.
        backend: "auto" takes the fastest that runs on the tensors' device.

    Raises:
        ValueError: a wrong shape, dtype, device or range.
    """
    if backend not in ("auto", "reference", "torch"):
        raise ValueError(f"backend {backend!r} is not one of 'auto', 'reference', 'torch'")
    _check_indices(slot_mapping, block_tables)
    _check_lengths(slot_mapping, block_tables, seq_lens, q_lens, block_size)
    _check_range("slot_mapping", slot_mapping, num_blocks * block_size)
    _check_range("block_tables", block_tables, num_blocks)
    device = slot_mapping.device
    starts = torch.zeros(len(q_lens) + 1, dtype=torch.int64)
    starts[1:] = torch.tensor(q_lens, dtype=torch.int64).cumsum(0)
    chosen: Literal["reference", "torch"] = "reference" if backend == "reference" else "torch"
    groups = (
        torch_paged.make_groups(block_tables, seq_lens, q_lens, block_size)
        if chosen == "torch"
        else ()
    )
    return KernelPlan(
        backend=chosen,
        cache_shape=(num_blocks, block_size),
        slot_mapping=slot_mapping.long(),
        block_tables=block_tables,
        seq_lens=torch.tensor(seq_lens, dtype=torch.int64, device=device),
        query_start_loc=starts.to(device),
        groups=groups,
    )


def write_kv(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, plan: KernelPlan
) -> None:
    """Stores the step's keys and values in their slots; changes the caches.

    Args:
        key: `[num_tokens, num_kv_heads, head_dim]`.
        value: as `key`.
        key_cache: `[num_blocks, block_size, num_kv_heads, head_dim]`.
        value_cache: as `key_cache`.
        plan: of `prepare`.

    Raises:
        ValueError: a shape, dtype or device that differs from the caches' or the plan's.
    """
    _check_caches(key_cache, value_cache, plan)
    wanted = (plan.num_tokens, *key_cache.shape[2:])
    for name, tensor in (("key", key), ("value", value)):
        if tensor.shape != wanted:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, the step needs {wanted}")
        if tensor.dtype != key_cache.dtype or tensor.device != key_cache.device:
            raise ValueError(
                f"{name} is {tensor.dtype} on {tensor.device}, the cache is "
                f"{key_cache.dtype} on {key_cache.device}"
            )
    write = reference.write_kv if plan.backend == "reference" else torch_paged.write_kv
    write(key, value, key_cache, value_cache, plan.slot_mapping)


def copy_blocks(
    caches: Sequence[Tensor], pairs: Sequence[tuple[int, int]], *, backend: Backend = "auto"
) -> None:
    """Copies blocks (source, destination), as if one pair after the other; changes the caches.

    Raises:
        ValueError: a block outside the caches.
    """
    if not pairs:
        return
    for cache in caches:
        for block_id in (block_id for pair in pairs for block_id in pair):
            if not 0 <= block_id < cache.shape[0]:
                raise ValueError(f"block {block_id} is outside the cache's {cache.shape[0]} blocks")
    copy = reference.copy_blocks if backend == "reference" else torch_paged.copy_blocks
    copy(caches, pairs)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: KernelPlan,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention of the step's tokens over their contexts.

    Args:
        query: `[num_tokens, num_heads, head_dim]`; num_heads is a multiple of num_kv_heads.
        key_cache: `[num_blocks, block_size, num_kv_heads, head_dim]`.
        value_cache: as `key_cache`.
        plan: of `prepare`.
        scale: factor on the scores.
        sliding_window: a query sees itself and the window - 1 positions before it.
        softcap: scores become softcap * tanh(score / softcap).

    Returns:
        `[num_tokens, num_heads, head_dim]`.

    Raises:
        ValueError: a shape or dtype that differs from the caches' or the plan's.
    """
    _check_caches(key_cache, value_cache, plan)
    num_kv_heads, head_dim = key_cache.shape[2:]
    if query.ndim != 3 or query.shape[0] != plan.num_tokens or query.shape[2] != head_dim:
        raise ValueError(
            f"query has shape {tuple(query.shape)}, "
            f"the step needs ({plan.num_tokens}, heads, {head_dim})"
        )
    if query.shape[1] % num_kv_heads:
        raise ValueError(f"{query.shape[1]} query heads can't share {num_kv_heads} KV heads evenly")
    if query.dtype != key_cache.dtype or query.device != key_cache.device:
        raise ValueError(
            f"query is {query.dtype} on {query.device}, the cache is "
            f"{key_cache.dtype} on {key_cache.device}"
        )
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window {sliding_window} must be at least 1")
    if plan.backend == "torch":
        return torch_paged.paged_attention(
            query, key_cache, value_cache, plan.groups, scale, sliding_window, softcap
        )
    return reference.paged_attention(
        query,
        key_cache,
        value_cache,
        plan.block_tables,
        plan.seq_lens,
        plan.query_start_loc,
        scale,
        sliding_window,
        softcap,
    )


def _check_caches(key_cache: Tensor, value_cache: Tensor, plan: KernelPlan) -> None:
    if key_cache.ndim != 4 or key_cache.shape != value_cache.shape:
        raise ValueError(
            f"caches of shape {tuple(key_cache.shape)} and {tuple(value_cache.shape)} are not "
            "two equal [num_blocks, block_size, num_kv_heads, head_dim]"
        )
    if key_cache.shape[:2] != plan.cache_shape:
        raise ValueError(
            f"the plan was made for {plan.cache_shape[0]} blocks of {plan.cache_shape[1]} slots, "
            f"the cache has {key_cache.shape[0]} of {key_cache.shape[1]}"
        )


def _check_indices(slot_mapping: Tensor, block_tables: Tensor) -> None:
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


def _check_lengths(
    slot_mapping: Tensor,
    block_tables: Tensor,
    seq_lens: Sequence[int],
    q_lens: Sequence[int],
    block_size: int,
) -> None:
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


def _check_range(name: str, tensor: Tensor, bound: int) -> None:
    if tensor.numel() == 0:
        return
    low, high = (int(edge) for edge in tensor.aminmax())
    if low < 0 or high >= bound:
        raise ValueError(f"{name} holds {low} .. {high}, outside 0 .. {bound - 1}")
