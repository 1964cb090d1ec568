"""Paged attention by the Triton kernels: decodes by one, prefills by the other.

It chooses settings and splits; the kernels do the rest. It checks nothing: `kernels.dispatch`
does.
"""

import torch
from torch import Tensor

from kernels import triton_mass, tuning
from kernels.fp8 import KVScales
from kernels.triton_decode import decode
from kernels.triton_launch import architecture, num_multiprocessors
from kernels.triton_prefill import prefill
from kernels.triton_step import Step

__all__ = ["block_mass", "num_splits", "paged_attention"]


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    step: Step,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    scales: KVScales | None = None,
    *,
    splits: int | None = None,
    checked: bool = False,
) -> Tensor:
    """Causal attention over each sequence's context; see `kernels.reference.paged_attention`.

    Args:
        query: `[num_tokens, num_heads, head_dim]`.
        key_cache: `[num_blocks, block_size, num_kv_heads, head_dim]`, contiguous.
        value_cache: as `key_cache`.
        step: of `make_step`.
        scale: factor on the scores.
        sliding_window: a query sees itself and the window - 1 positions before it.
        softcap: scores become softcap * tanh(score / softcap).
        scales: of an fp8 cache.
        splits: shares of each decode's context; None chooses.
        checked: never read outside the pool.
    """
    if query.stride(2) != 1:
        query = query.contiguous()
    if scales is not None:
        key_cache, value_cache = key_cache.view(torch.uint8), value_cache.view(torch.uint8)
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    if step.num_decodes:
        count = num_splits(query, key_cache, step) if splits is None else splits
        decode(
            query, key_cache, value_cache, step, output, _settings("decode", query, key_cache),
            count, scale=scale, sliding_window=sliding_window, softcap=softcap, scales=scales,
            checked=checked,
        )  # fmt: skip
    if step.prefills:
        prefill(
            query, key_cache, value_cache, step, output, _settings("prefill", query, key_cache),
            scale=scale, sliding_window=sliding_window, softcap=softcap, scales=scales,
            checked=checked,
        )  # fmt: skip
    return output


def block_mass(
    query: Tensor,
    key_cache: Tensor,
    step: Step,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    scales: KVScales | None = None,
    *,
    checked: bool = False,
) -> Tensor:
    """Attention weight of each block; see `kernels.reference.block_mass`."""
    if query.stride(2) != 1:
        query = query.contiguous()
    if scales is not None:
        key_cache = key_cache.view(torch.uint8)
    return triton_mass.block_mass(
        query, key_cache, step, scale=scale, sliding_window=sliding_window, softcap=softcap,
        scales=scales, checked=checked,
    )  # fmt: skip


def num_splits(query: Tensor, key_cache: Tensor, step: Step) -> int:
    """Shares that each decode's context is cut into on this machine."""
    settings = _settings("decode", query, key_cache)
    processors = num_multiprocessors(query.device)
    return tuning.split_count(
        step.num_decodes, key_cache.shape[2], step.longest, processors, settings.waves
    )


def _settings(kernel: tuning.Kernel, query: Tensor, key_cache: Tensor) -> tuning.Settings:
    _, block_size, _, head_dim = key_cache.shape
    dtype = str(query.dtype).removeprefix("torch.")
    return tuning.settings_for(kernel, dtype, head_dim, block_size, architecture(query.device))
