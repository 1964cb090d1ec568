"""How long one step of paged attention takes at each block size, measured here and now.

It owns the measurement: one layer's decode attention of a batch of equal contexts, through the same
door as the engine's (`kernels.dispatch`), over blocks in shuffled order. Sizes take turns, so that
a slow moment of the machine falls on all of them; the fastest turn of each counts, because whatever
else runs there can only add. It knows no engine and no model's weights: only a model's shape.
"""

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from core.errors import ConfigError, TraceError
from core.machine import processor_name
from kernels import dispatch

__all__ = ["SIZES", "AttentionSweep", "Shape", "measure", "prepared"]

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MAX_TOKENS = 1 << 18


@dataclass(frozen=True, slots=True)
class Shape:
    """One layer's attention; the default is SmolLM2-135M's."""

    name: str = "SmolLM2-135M"
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64


@dataclass(frozen=True, slots=True)
class AttentionSweep:
    """Seconds of one layer's decode attention by block size, and what they were measured on."""

    seconds: tuple[tuple[int, float], ...]
    num_seqs: int
    context: int
    repeats: int
    dtype: str
    device: str
    processor: str
    threads: int
    shape: Shape = field(default_factory=Shape)

    def to_json(self) -> str:
        """The sweep as one JSON object."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "AttentionSweep":
        """The sweep that `to_json` wrote.

        Raises:
            TraceError: the text is something else.
        """
        try:
            values: dict[str, Any] = json.loads(text)
            pairs = tuple((int(size), float(seconds)) for size, seconds in values["seconds"])
            return cls(**{**values, "seconds": pairs, "shape": Shape(**values["shape"])})
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError("attention_sweep", detail=str(error)) from error


def measure(
    sizes: Sequence[int] = SIZES,
    *,
    num_seqs: int = 8,
    context: int = 1024,
    repeats: int = 21,
    shape: Shape | None = None,
    dtype: torch.dtype = torch.float32,
    on_turn: Callable[[int], None] | None = None,
) -> AttentionSweep:
    """Measures on this machine's processor.

    Args:
        sizes: block sizes.
        num_seqs: sequences in the batch, one new token each.
        context: tokens that each attends to.
        repeats: turns of each size; the fastest counts.
        shape: of the attention.
        dtype: of K, V and the queries.
        on_turn: called with the number of finished turns.

    Raises:
        ConfigError: no size, or more tokens than this is meant for.
    """
    if not sizes or min(sizes) < 1 or not 1 <= num_seqs * context <= _MAX_TOKENS or repeats < 1:
        raise ConfigError("attention_sweep_size", tokens=num_seqs * context, limit=_MAX_TOKENS)
    shape = shape or Shape()
    runs = {size: prepared(size, num_seqs, context, shape, dtype) for size in sizes}
    for run in runs.values():
        run()  # the first call pays for memory and code that later ones find
    turns: dict[int, list[float]] = {size: [] for size in sizes}
    for turn in range(repeats):
        for size, run in runs.items():
            start = time.perf_counter()
            run()
            turns[size].append(time.perf_counter() - start)
        if on_turn:
            on_turn(turn + 1)
    return AttentionSweep(
        tuple((size, min(times)) for size, times in turns.items()),
        num_seqs, context, repeats, str(dtype).removeprefix("torch."), "cpu",
        processor_name(), torch.get_num_threads(), shape,
    )  # fmt: skip


def prepared(
    size: int, num_seqs: int, context: int, shape: Shape, dtype: torch.dtype
) -> Callable[[], object]:
    """One step's attention at one block size, ready to run again and again."""
    each = -(-context // size)
    order = list(range(num_seqs * each))
    random.Random(0).shuffle(order)  # as in a pool that has been in use
    tables = torch.tensor(order).view(num_seqs, each)  # [num_seqs, blocks of a sequence]
    last = context - 1
    slots = tables[:, last // size] * size + last % size  # [num_seqs]
    plan = dispatch.prepare(
        slots, tables, [context] * num_seqs, [1] * num_seqs,
        num_blocks=num_seqs * each, block_size=size,
        backend=dispatch.choose_backend("auto", "cpu", dtype),  # as the engine would
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    cache = (num_seqs * each, size, shape.num_kv_heads, shape.head_dim)
    key, value = (torch.randn(cache, generator=generator).to(dtype) for _ in range(2))
    query = torch.randn(num_seqs, shape.num_heads, shape.head_dim, generator=generator).to(dtype)
    scale = shape.head_dim**-0.5
    return lambda: dispatch.paged_attention(query, key, value, plan, scale)
