"""The paged KV cache in plain torch, written to be read: the oracle of every faster path.

One loop over sequences, one matrix product after another, all arithmetic in float32. Caches are
`[num_blocks, block_size, num_kv_heads, head_dim]`; queries, keys and values of a step are packed,
sequence after sequence, as `[num_tokens, heads, head_dim]`.

It does not know requests, layers or models, and it checks nothing: `kernels.dispatch` does.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["copy_blocks", "paged_attention", "write_kv"]


def write_kv(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Stores token i of the step in slot `slot_mapping[i]`; changes the caches.

    Args:
        key: `[num_tokens, num_kv_heads, head_dim]`.
        value: as `key`.
        key_cache: `[num_blocks, block_size, num_kv_heads, head_dim]`.
        value_cache: as `key_cache`.
        slot_mapping: `[num_tokens]`, block_id * block_size + offset.
    """
    block_size = key_cache.shape[1]
    for token, slot in enumerate(slot_mapping.tolist()):
        block_id, offset = divmod(slot, block_size)
        key_cache[block_id, offset] = key[token]
        value_cache[block_id, offset] = value[token]


def copy_blocks(caches: Sequence[Tensor], pairs: Sequence[tuple[int, int]]) -> None:
    """Copies whole blocks, (source, destination) one after the other, in every cache."""
    for cache in caches:
        for source, destination in pairs:
            cache[destination] = cache[source]


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

    Returns:
        `[num_tokens, num_heads, head_dim]`, in the query's dtype.
    """
    output = torch.empty_like(query)
    starts = query_start_loc.tolist()
    for index, seq_len in enumerate(seq_lens.tolist()):
        rows = slice(starts[index], starts[index + 1])
        keys = _context(key_cache, block_tables[index], seq_len)
        values = _context(value_cache, block_tables[index], seq_len)
        output[rows] = _attend(query[rows], keys, values, scale, sliding_window, softcap)
    return output


def _context(cache: Tensor, block_table: Tensor, seq_len: int) -> Tensor:
    block_size = cache.shape[1]
    num_blocks = -(-seq_len // block_size)
    blocks = cache[block_table[:num_blocks].long()]  # [blocks, block_size, num_kv_heads, head_dim]
    return blocks.flatten(0, 1)[:seq_len].float()  # [seq_len, num_kv_heads, head_dim]


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
) -> Tensor:
    q_len, num_heads, _ = query.shape
    seq_len, num_kv_heads, _ = keys.shape
    group = num_heads // num_kv_heads  # query heads that share a KV head
    keys = keys.repeat_interleave(group, dim=1)  # [seq_len, num_heads, head_dim]
    values = values.repeat_interleave(group, dim=1)  # [seq_len, num_heads, head_dim]
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    query_positions = torch.arange(seq_len - q_len, seq_len, device=query.device)[:, None]
    key_positions = torch.arange(seq_len, device=query.device)[None, :]
    visible = key_positions <= query_positions  # [q_len, seq_len]
    if sliding_window is not None:
        visible &= key_positions > query_positions - sliding_window
    scores = scores.masked_fill(~visible, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)
