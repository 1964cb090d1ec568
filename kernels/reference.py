"""The paged KV cache in plain torch, written to be read: the oracle of every faster path.

One loop over sequences, one matrix product after another, all arithmetic in float32. Caches are
`[num_blocks, block_size, num_kv_heads, head_dim]`; queries, keys and values of a step are packed,
sequence after sequence, as `[num_tokens, heads, head_dim]`.

It does not know requests, layers or models, and it checks nothing: `kernels.dispatch` does.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.fp8 import KVScales, quantise

__all__ = ["block_mass", "copy_blocks", "move_blocks", "paged_attention", "write_kv"]


def write_kv(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    scales: KVScales | None = None,
) -> None:
    """Stores token i of the step in slot `slot_mapping[i]`; changes the caches.

    Args:
        key: `[num_tokens, num_kv_heads, head_dim]`.
        value: as `key`.
        key_cache: `[num_blocks, block_size, num_kv_heads, head_dim]`.
        value_cache: as `key_cache`.
        slot_mapping: `[num_tokens]`, block_id * block_size + offset; a padding token has a
            negative one and is not stored.
        scales: of an fp8 cache.
    """
    block_size = key_cache.shape[1]
    if scales is not None:
        key, value = quantise(key, scales.key), quantise(value, scales.value)
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot < 0:
            continue
        block_id, offset = divmod(slot, block_size)
        key_cache[block_id, offset] = key[token]
        value_cache[block_id, offset] = value[token]


def copy_blocks(storage: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copies whole blocks, (source, destination) one after the other, in every cache.

    Args:
        storage: `[caches, num_blocks, ...]`.
        pairs: block ids.
    """
    move_blocks(storage, storage, pairs)


def move_blocks(source: Tensor, destination: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copies whole blocks of every cache from one storage to another, such as the host's."""
    for read, write in pairs:
        destination[:, write] = source[:, read].to(destination.device)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    scales: KVScales | None = None,
) -> Tensor:
    """Causal attention of each sequence's new tokens over its whole context.

    Query token i of a sequence with q_len new tokens sits at position seq_len - q_len + i.

    Args:
        query: `[num_tokens, num_heads, head_dim]`.
        key_cache: `[num_blocks, block_size, num_kv_heads, head_dim]`, new tokens already stored.
        value_cache: as `key_cache`.
        block_tables: `[num_seqs, max_blocks]`; entries past a sequence's end are not read.
        seq_lens: `[num_seqs]`, context with the new tokens.
        query_start_loc: `[num_seqs + 1]`, where each sequence's queries start.
        scale: factor on the scores.
        sliding_window: a query sees itself and the window - 1 positions before it.
        softcap: scores become softcap * tanh(score / softcap).
        scales: of an fp8 cache.

    Returns:
        `[num_tokens, num_heads, head_dim]`, in the query's dtype.
    """
    key_scale, value_scale = (scales.key, scales.value) if scales else (None, None)
    output = torch.empty_like(query)
    starts = query_start_loc.tolist()
    for index, seq_len in enumerate(seq_lens.tolist()):
        rows = slice(starts[index], starts[index + 1])
        keys = _context(key_cache, block_tables[index], seq_len, key_scale)
        values = _context(value_cache, block_tables[index], seq_len, value_scale)
        weights = _weights(query[rows], keys, scale, sliding_window, softcap)
        values = values.repeat_interleave(weights.shape[0] // values.shape[1], dim=1)
        output[rows] = torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)
    return output


def block_mass(
    query: Tensor,
    key_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    scales: KVScales | None = None,
) -> Tensor:
    """How much of its attention each sequence's last query gives to each of its blocks.

    Args: as of `paged_attention`.

    Returns:
        `[num_seqs, num_heads, max_blocks]` float32; 0 past a sequence's end, and rows sum to 1.
    """
    block_size, max_blocks = key_cache.shape[1], block_tables.shape[1]
    mass = torch.zeros(
        (len(seq_lens), query.shape[1], max_blocks * block_size), device=query.device
    )
    for index, seq_len in enumerate(seq_lens.tolist()):
        last = int(query_start_loc[index + 1]) - 1
        keys = _context(key_cache, block_tables[index], seq_len, scales.key if scales else None)
        weights = _weights(query[last : last + 1], keys, scale, sliding_window, softcap)
        mass[index, :, :seq_len] = weights[:, 0]  # [num_heads, seq_len]
    return mass.view(*mass.shape[:2], max_blocks, block_size).sum(-1)


def _context(cache: Tensor, block_table: Tensor, seq_len: int, scale: Tensor | None) -> Tensor:
    """A sequence's keys or values in order, `[seq_len, num_kv_heads, head_dim]` float32."""
    block_size = cache.shape[1]
    num_blocks = -(-seq_len // block_size)
    chosen = block_table[:num_blocks].long()
    if scale is not None:  # gathered as bytes: torch indexes no fp8 on a CPU
        blocks = cache.view(torch.uint8)[chosen].view(cache.dtype).float() * scale[:, None]
    else:
        blocks = cache[chosen].float()  # [blocks, block_size, num_kv_heads, head_dim]
    return blocks.flatten(0, 1)[:seq_len]


def _weights(
    query: Tensor, keys: Tensor, scale: float, sliding_window: int | None, softcap: float | None
) -> Tensor:
    """The softmax of the scores, `[num_heads, q_len, seq_len]`."""
    q_len, num_heads, _ = query.shape
    seq_len, num_kv_heads, _ = keys.shape
    group = num_heads // num_kv_heads  # query heads that share a KV head
    keys = keys.repeat_interleave(group, dim=1)  # [seq_len, num_heads, head_dim]
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    query_positions = torch.arange(seq_len - q_len, seq_len, device=query.device)[:, None]
    key_positions = torch.arange(seq_len, device=query.device)[None, :]
    visible = key_positions <= query_positions  # [q_len, seq_len]
    if sliding_window is not None:
        visible &= key_positions > query_positions - sliding_window
    return torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
