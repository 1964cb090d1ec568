"""Paged attention in vectorised torch: no loop over sequences, index work once a step.

`make_groups` sorts a step's sequences into few groups of similar shape (decodes apart from
prefills, long apart from short) and works out which slots each group reads. Every layer then
gathers a group's K and V into one padded batch and attends: by torch's fused attention, or in
bfloat16 on a CPU by batched products where those measured faster and their scores fit. An fp8
cache is gathered as bytes and expanded to the query's type; a head's scales are factors of its
queries and of its output, so that no context is multiplied by them.

Invariants: a padding position reads the slot of its own sequence's first token, so no slot is
read that no token of the sequence has written; groups partition the sequences.
It does not know layers or models, and it checks nothing: `kernels.dispatch` does.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.fp8 import FP8, KVScales, expand, quantise

__all__ = ["Group", "copy_blocks", "make_groups", "move_blocks", "paged_attention", "write_kv"]

# A group is split when that saves at least so many padded scores; below, the fixed cost of one
# more group in every layer (about 0.1 ms on a CPU) is larger than what the padding costs.
_SPLIT_GAIN = 2048
# Padded slots that a group gathers at most on a CPU: K and V then stay in the processor's cache
# until attention reads them.
_CPU_SLOTS = 4096
# Attention by products: below so many scores a thread its calls cost more than fused attention,
# above so many it would take too much memory.
_MIN_SCORES = 16_000
_MAX_SCORES = 1 << 22


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences computed as one padded batch of B sequences, Q queries and L keys each.

    Attributes:
        slots: `[B * L]`, the slots that hold each context, padded.
        rows: `[B * Q]` packed query row of each padded query; None when they are rows 0, 1, ...
        kept: `[real rows]` padded query index of each packed row; None when nothing is padded.
        out_rows: `[real rows]` packed row of each kept query; None when the group is the step.
        positions: `[B, Q]` position of each query in its sequence.
        seq_lens: `[B]`.
        fresh: no context before this step, so plain causal attention needs no mask.
        masks: additive masks by (window, dtype, query heads per KV head), made on first use.
        head_masks: the same, one for each KV head of each sequence.
        buffers: gathered K and V, written anew by every layer.
    """

    shape: tuple[int, int, int]
    slots: Tensor
    rows: Tensor | None
    kept: Tensor | None
    out_rows: Tensor | None
    positions: Tensor
    seq_lens: Tensor
    fresh: bool
    masks: dict[tuple[int | None, torch.dtype, int], Tensor] = field(default_factory=dict)
    head_masks: dict[tuple[int | None, torch.dtype, int, int], Tensor] = field(default_factory=dict)
    buffers: dict[tuple[str, int, torch.dtype], Tensor] = field(default_factory=dict)


def write_kv(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    scales: KVScales | None = None,
) -> None:
    """Stores token i of the step in slot `slot_mapping[i]`; see `kernels.reference.write_kv`."""
    if scales is not None:
        key = quantise(key, scales.key).view(torch.uint8)
        value = quantise(value, scales.value).view(torch.uint8)
        key_cache, value_cache = key_cache.view(torch.uint8), value_cache.view(torch.uint8)
    key_cache.flatten(0, 1).index_copy_(0, slot_mapping, key)
    value_cache.flatten(0, 1).index_copy_(0, slot_mapping, value)


def copy_blocks(caches: Sequence[Tensor], pairs: Sequence[tuple[int, int]]) -> None:
    """Copies whole blocks; one gather for all pairs when their order can't matter."""
    sources = [source for source, _ in pairs]
    destinations = [destination for _, destination in pairs]
    independent = len({*destinations}) == len(pairs) and not {*sources} & {*destinations}
    batches = [(sources, destinations)] if independent else [([s], [d]) for s, d in pairs]
    for cache in caches:
        for read, write in batches:
            source = torch.tensor(read, device=cache.device)
            cache.index_copy_(0, torch.tensor(write, device=cache.device), cache[source])


def move_blocks(source: Tensor, destination: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copies blocks between two storages `[caches, num_blocks, ...]` on any two devices."""
    read = torch.tensor([pair[0] for pair in pairs], device=source.device)
    write = torch.tensor([pair[1] for pair in pairs], device=destination.device)
    blocks = source.index_select(1, read).to(destination.device)
    destination.index_copy_(1, write, blocks)


def make_groups(
    block_tables: Tensor,
    seq_lens: Sequence[int],
    q_lens: Sequence[int],
    block_size: int,
    members: Sequence[int] | None = None,
) -> tuple[Group, ...]:
    """The groups of one step.

    Args:
        block_tables: `[num_seqs, max_blocks]`.
        seq_lens: context of each sequence with its new tokens.
        q_lens: new tokens of each sequence.
        block_size: slots in a block.
        members: sequences to group; None is all.
    """
    members = range(len(q_lens)) if members is None else members
    most = _CPU_SLOTS if block_tables.device.type == "cpu" else sys.maxsize
    starts = [0]
    for q_len in q_lens:
        starts.append(starts[-1] + q_len)
    return tuple(
        _group(grouped, block_tables, seq_lens, q_lens, starts, block_size)
        for grouped in _partition(members, seq_lens, q_lens, most)
    )


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    groups: Sequence[Group],
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    scales: KVScales | None = None,
) -> Tensor:
    """Causal attention over each sequence's context; see `kernels.reference.paged_attention`.

    Args:
        query: `[num_tokens, num_heads, head_dim]`.
        key_cache: `[num_blocks, block_size, num_kv_heads, head_dim]`.
        value_cache: as `key_cache`.
        groups: of `make_groups`.
        scale: factor on the scores.
        sliding_window: a query sees itself and the window - 1 positions before it.
        softcap: scores become softcap * tanh(score / softcap).
        scales: of an fp8 cache.
    """
    if scales is not None:
        query = _by_head(query, scales.key)
    output = query if not groups else None
    for group in groups:
        part = _attend(query, key_cache, value_cache, group, scale, sliding_window, softcap)
        if group.out_rows is None:
            output = part
            break
        if output is None:
            output = torch.empty_like(query, memory_format=torch.contiguous_format)
        output.index_copy_(0, group.out_rows, part)
    assert output is not None
    return output if scales is None else _by_head(output, scales.value)


def _by_head(rows: Tensor, scale: Tensor) -> Tensor:
    """`[num_tokens, num_heads, head_dim]`, each head times the scale of its KV head."""
    factors = scale.repeat_interleave(rows.shape[1] // scale.shape[0])  # [num_heads]
    return (rows * factors[:, None]).to(rows.dtype)


def _partition(
    members: Sequence[int], seq_lens: Sequence[int], q_lens: Sequence[int], most: int
) -> list[list[int]]:
    """Sequence indices of each group: similar lengths together, decodes apart, `most` slots."""
    groups: list[list[int]] = []
    order = sorted(members, key=lambda i: (q_lens[i], seq_lens[i]), reverse=True)
    queries = keys = 0
    for place, index in enumerate(order):
        rest = len(order) - place
        q_len, seq_len = q_lens[index], seq_lens[index]
        saved = rest * (queries * keys - q_len * seq_len)
        wasteful = saved > _SPLIT_GAIN and 2 * q_len * seq_len <= queries * keys
        full = bool(groups) and (len(groups[-1]) + 1) * max(keys, seq_len) > most
        if not groups or wasteful or full or (queries > 1) != (q_len > 1):
            groups.append([])
            queries, keys = q_len, seq_len
        groups[-1].append(index)
        keys = max(keys, seq_len)
    return [sorted(group) for group in groups]


def _group(
    members: list[int],
    block_tables: Tensor,
    seq_lens: Sequence[int],
    q_lens: Sequence[int],
    starts: Sequence[int],
    block_size: int,
) -> Group:
    device = block_tables.device
    lens = torch.tensor([seq_lens[i] for i in members])
    news = torch.tensor([q_lens[i] for i in members])
    first_rows = torch.tensor([starts[i] for i in members])
    queries, keys = int(news.max()), int(lens.max())
    steps = torch.arange(queries)
    rows = first_rows[:, None] + steps.clamp(max=queries)  # [B, Q]
    real = steps[None] < news[:, None]  # [B, Q]
    rows = torch.where(real, rows, first_rows[:, None]).flatten()  # [B * Q]
    positions = (lens - news)[:, None] + steps[None]  # [B, Q]
    kept = None if bool(real.all()) else real.flatten().nonzero()[:, 0]
    whole = len(members) == len(seq_lens)
    packed = whole and kept is None  # the padded rows are exactly the packed rows
    out_rows = None if whole else (rows if kept is None else rows[kept])
    spread = torch.arange(keys)[None]
    spread = torch.where(spread < lens[:, None], spread, 0).to(device)  # [B, L]
    tables = block_tables[torch.tensor(members, device=device)].long()  # [B, max_blocks]
    slots = tables.gather(1, spread // block_size) * block_size + spread % block_size
    return Group(
        shape=(len(members), queries, keys),
        slots=slots.flatten(),
        rows=None if packed else rows.to(device),
        kept=None if kept is None else kept.to(device),
        out_rows=None if out_rows is None else out_rows.to(device),
        positions=positions.to(device),
        seq_lens=lens.to(device),
        fresh=queries > 1 and bool((lens == news).all()),
    )


def _attend(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    group: Group,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """The group's real rows, `[real rows, num_heads, head_dim]`."""
    batch, queries, length = group.shape
    num_heads, head_dim = query.shape[1:]
    num_kv_heads = key_cache.shape[2]
    per_kv = num_heads // num_kv_heads
    window = None if window is None or window >= length else window
    if group.rows is not None:
        query = query.index_select(0, group.rows)
    keys = _gather(group, "key", key_cache, query.dtype)  # [B, KV, L, D]
    values = _gather(group, "value", value_cache, query.dtype)  # [B, KV, L, D]
    products = softcap is None and _by_products_pays(group, query)
    if softcap is None and not products and group.fresh and window is None:
        return _fresh(query, keys, values, group, scale)
    # Query heads of one KV head become extra queries: [B, KV, Q * per_kv, D]. K and V then need
    # no repetition, and each is read once.
    grouped = query.reshape(batch, queries, num_kv_heads, per_kv, head_dim).transpose(1, 2)
    grouped = grouped.reshape(batch, num_kv_heads, queries * per_kv, head_dim)
    if softcap is not None:
        mask = _mask(group, window, per_kv, torch.float32)
        out = _capped(grouped, keys, values, mask, scale, softcap)
    elif products:
        mask = _head_mask(group, window, per_kv, num_kv_heads, query.dtype)
        out = _by_products(grouped, keys, values, mask, scale)
    else:
        mask = _mask(group, window, per_kv, query.dtype)
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
    out = out.view(batch, num_kv_heads, queries, per_kv, head_dim).transpose(1, 2)
    out = out.reshape(batch * queries, num_heads, head_dim)
    return out if group.kept is None else out.index_select(0, group.kept)


def _by_products_pays(group: Group, query: Tensor) -> bool:
    """Whether attention by products is the faster way, and its scores fit."""
    if query.dtype != torch.bfloat16 or query.device.type != "cpu":
        return False
    batch, queries, length = group.shape
    scores = batch * queries * query.shape[1] * length
    return _MIN_SCORES * torch.get_num_threads() <= scores <= _MAX_SCORES


def _by_products(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Scores, softmax in float32, weighted sum: `[B, KV, Q', D]`; mask `[B * KV, Q' or 1, L]`."""
    transposed = keys.flatten(0, 1).transpose(1, 2)  # [B * KV, D, L]
    scores = torch.baddbmm(mask, query.flatten(0, 1), transposed, alpha=scale)  # [B * KV, Q', L]
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
    return torch.bmm(weights, values.flatten(0, 1)).view(query.shape)


def _gather(group: Group, name: str, cache: Tensor, dtype: torch.dtype) -> Tensor:
    """A group's contexts, `[B, KV, L, D]`, in a buffer that all layers of the step share."""
    batch, _, length = group.shape
    num_kv_heads, head_dim = cache.shape[2:]
    slots = cache.view(-1, num_kv_heads * head_dim)
    if cache.dtype == FP8:
        codes = _select(group, "codes", slots.view(torch.uint8))
        found = _buffer(group, name, codes.shape[1], dtype)
        expand(codes, found)
    else:
        found = _select(group, name, slots)
    return found.view(batch, length, num_kv_heads, head_dim).transpose(1, 2)


def _select(group: Group, name: str, slots: Tensor) -> Tensor:
    """A group's slots in order, `[B * L, KV * D]`."""
    buffer = _buffer(group, name, slots.shape[1], slots.dtype)
    # NOTE: whole slots, though products want a head's rows together and copy them again: reading
    # short pieces from memory takes longer than that copy, which is in the processor's cache.
    return torch.index_select(slots, 0, group.slots, out=buffer)


def _buffer(group: Group, name: str, width: int, dtype: torch.dtype) -> Tensor:
    """`[B * L, width]`; new memory in every layer would cost more in page faults than the copy."""
    buffer = group.buffers.get((name, width, dtype))
    if buffer is None:
        buffer = group.slots.new_empty((len(group.slots), width), dtype=dtype)
        group.buffers[name, width, dtype] = buffer
    return buffer


def _fresh(query: Tensor, keys: Tensor, values: Tensor, group: Group, scale: float) -> Tensor:
    """Prefill without earlier context: unmasked causal attention, half of the work skipped."""
    batch, queries, _ = group.shape
    num_heads, head_dim = query.shape[1:]
    per_kv = num_heads // keys.shape[1]
    padded = query.view(batch, queries, num_heads, head_dim).transpose(1, 2)  # [B, H, Q, D]
    if per_kv > 1:
        keys = keys.repeat_interleave(per_kv, dim=1)  # [B, H, L, D]
        values = values.repeat_interleave(per_kv, dim=1)
    out = F.scaled_dot_product_attention(padded, keys, values, is_causal=True, scale=scale)
    out = out.transpose(1, 2).reshape(batch * queries, num_heads, head_dim)
    return out if group.kept is None else out.index_select(0, group.kept)


def _capped(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, softcap: float
) -> Tensor:
    """Attention with capped scores, in float32: fused attention has no place for the cap."""
    scores = torch.matmul(query.float(), keys.float().transpose(2, 3)) * scale  # [B, KV, Q', L]
    scores = softcap * torch.tanh(scores / softcap) + mask
    weights = torch.softmax(scores, dim=-1)
    return torch.matmul(weights, values.float()).to(query.dtype).contiguous()


def _mask(group: Group, window: int | None, per_kv: int, dtype: torch.dtype) -> Tensor:
    """Additive mask `[B, 1, Q * per_kv, L]`, or `[B, 1, 1, L]` for decodes; kept for the step."""
    found = group.masks.get((window, dtype, per_kv))
    if found is not None:
        return found
    _, queries, length = group.shape
    key_positions = torch.arange(length, device=group.slots.device)
    positions = group.positions[:, :, None]  # [B, Q, 1]
    visible = key_positions <= positions  # [B, Q, L]
    visible &= key_positions < group.seq_lens[:, None, None]
    if window is not None:
        visible &= key_positions > positions - window
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    mask.masked_fill_(~visible, float("-inf"))
    if queries > 1:
        mask = mask.repeat_interleave(per_kv, dim=1)  # [B, Q * per_kv, L]
    mask = mask[:, None]
    group.masks[window, dtype, per_kv] = mask
    return mask


def _head_mask(
    group: Group, window: int | None, per_kv: int, num_kv_heads: int, dtype: torch.dtype
) -> Tensor:
    """The additive mask as batched products take it, `[B * KV, Q * per_kv or 1, L]`."""
    key = window, dtype, per_kv, num_kv_heads
    found = group.head_masks.get(key)
    if found is None:
        mask = _mask(group, window, per_kv, dtype)[:, 0]
        found = group.head_masks[key] = mask.repeat_interleave(num_kv_heads, dim=0)
    return found
