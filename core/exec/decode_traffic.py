"""What the decode kernel reads in one step of a run: which blocks, in which order, how many bytes.

It owns the way from a trace's step to the kernel's programs (`kernels.traffic`) and the counts.
Everything here is derived from the trace and from the kernel's loop; nothing is measured. It loads
no torch. A kernel's program is one instance of it on a GPU: a sequence, a KV head and a share of
the context.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.errors import TraceError
from core.trace import events as ev
from core.trace.snapshot import Snapshot
from core.trace.trace import Trace
from kernels.traffic import DecodeProgram, decode_programs
from kernels.tuning import settings_for, split_count

__all__ = [
    "CUTS",
    "Cut",
    "DecodeSequence",
    "DecodeStep",
    "Heads",
    "Program",
    "Traffic",
    "decode_steps",
    "step_of",
    "traffic",
]

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_STORED_BYTES = _ITEM_BYTES | {"float8_e4m3fn": 1, "fp8": 1}  # measured, and simulated


@dataclass(frozen=True, slots=True)
class Cut:
    """What a device's kernels are cut for: its architecture and how many multiprocessors it has."""

    arch: str
    multiprocessors: int


# The interpreter counts as a GPU of four multiprocessors, as it does for the kernels themselves.
CUTS: Mapping[str, Cut] = {
    "interpreter": Cut("interpreter", 4),
    "a100": Cut("sm80", 108),
    "h100": Cut("sm90", 132),
    "b200": Cut("sm100", 148),
    "mi300x": Cut("gfx942", 304),
}


@dataclass(frozen=True, slots=True)
class Heads:
    """One layer's attention, and how many layers there are.

    Attributes:
        dtype: of the queries.
        windows: each layer's sliding window, None where it has none; empty when no layer has one.
        kv_dtype: of the cache; empty when it is the queries'.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: int
    dtype: str
    windows: tuple[int | None, ...] = ()
    kv_dtype: str = ""

    @property
    def stored(self) -> str:
        """What K and V are stored in."""
        return self.kv_dtype or self.dtype

    @property
    def kinds(self) -> Mapping[int | None, int]:
        """How many layers have each sliding window; None for those that see everything."""
        return Counter(self.windows) or {None: self.layers}

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def item_bytes(self) -> int:
        """Bytes of one number in the cache."""
        return _STORED_BYTES[self.stored]

    @property
    def token_bytes(self) -> int:
        """K and V of one token in one KV head."""
        return 2 * self.head_dim * self.item_bytes

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> "Heads | None":
        """The heads of a trace header's model; None when it doesn't say them."""
        names = ("heads", "kv_heads", "head_dim", "layers")
        counts = [model.get(name) for name in names]
        dtype = model.get("dtype")
        stored = model.get("kv_dtype", dtype)
        if str(dtype) not in _ITEM_BYTES or str(stored) not in _STORED_BYTES:
            return None
        if any(type(n) is not int or n < 1 for n in counts):
            return None
        heads, kv_heads, head_dim, layers = (int(str(n)) for n in counts)
        if heads < kv_heads:
            return None
        windows = _windows(model, layers)
        return cls(heads, kv_heads, head_dim, layers, str(dtype), windows, str(stored))


@dataclass(frozen=True, slots=True)
class DecodeSequence:
    """A sequence with one new token; `seq_len` counts that token too."""

    seq_id: str
    label: str
    seq_len: int
    table: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """A step at the moment of its attention: all of its tokens stored, nothing released yet.

    Attributes:
        filled: for each block that somebody holds, the slots that hold a token.
        other_tokens: new tokens of sequences that bring several; another kernel reads for those.
    """

    step: int
    block_size: int
    num_blocks: int
    sequences: tuple[DecodeSequence, ...]
    filled: Mapping[int, int]
    other_tokens: int


@dataclass(frozen=True, slots=True)
class Program:
    """A (sequence, split) of the kernel; one such program for each KV head runs the same loop.

    Attributes:
        turns: for each turn of the loop the blocks that it reads, in order.
    """

    sequence: int
    split: int
    begin: int
    end: int
    turns: tuple[tuple[int, ...], ...]

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks in the order of their first reading."""
        return tuple(dict.fromkeys(block for turn in self.turns for block in turn))


@dataclass(frozen=True, slots=True)
class Traffic:
    """One layer's reads in a step. Bytes are those of K and V.

    Attributes:
        window: the layer's sliding window; None when it sees the whole context.
        programs: those that have something to read, KV heads left together.
        num_programs: launched, over all KV heads, idle ones too.
        shared_bytes: read when a group of query heads shares each load, as the kernel does.
        separate_bytes: read if each query head loaded its K and V itself.
        padded_bytes: read by a dense batch in which every context is padded to the longest.
        blocks_touched: different blocks.
        block_reads: visits to a block, in one KV head: more than touched when blocks are shared.
        idle_lanes: places of the last tiles past a context's end, in one KV head: masked, not read.
    """

    heads: Heads
    window: int | None
    tile: int
    splits: int
    programs: tuple[Program, ...]
    num_programs: int
    shared_bytes: int
    separate_bytes: int
    padded_bytes: int
    blocks_touched: int
    block_reads: int
    idle_lanes: int

    @property
    def num_turns(self) -> int:
        """Turns of the longest loop."""
        return max((len(program.turns) for program in self.programs), default=0)

    def bytes_of(self, sequence: int) -> int:
        """Bytes that all programs of one sequence read, in one layer."""
        tokens = sum(p.end - p.begin for p in self.programs if p.sequence == sequence)
        return tokens * self.heads.token_bytes * self.heads.num_kv_heads


def decode_steps(trace: Trace) -> list[int]:
    """The steps in which a sequence brings one new token."""
    found = (e.step for e in trace.events if isinstance(e, ev.RequestScheduled) and e.tokens == 1)
    return list(dict.fromkeys(found))


def step_of(trace: Trace, step: int) -> DecodeStep:
    """The step at the moment of its attention.

    Raises:
        TraceError: there is no such step.
    """
    if not 1 <= step <= trace.num_steps:
        raise TraceError("no_such_step", step=step, last=trace.num_steps)
    layout = trace.header.layout
    snapshot = Snapshot(layout)
    scheduled: list[ev.RequestScheduled] = []
    for event in trace.events:
        if event.step > step or (event.step == step and event.phase in ("sample", "free")):
            break
        snapshot.apply(event)
        if event.step == step and isinstance(event, ev.RequestScheduled):
            scheduled.append(event)
    # A sequence that was preempted after it was scheduled has stored nothing.
    done = [e for e in scheduled if snapshot.sequences[e.seq_id].stored == e.start + e.tokens]
    sequences = tuple(_sequence(snapshot, e.seq_id) for e in done if e.tokens == 1)
    filled = {block: len(snapshot.slots[block]) for block in snapshot.owners()}
    if layout.is_contiguous:
        filled = {slot: 1 for seq_id in snapshot.region_of for slot in _slots(snapshot, seq_id)}
    others = sum(e.tokens for e in done if e.tokens > 1)
    return DecodeStep(step, layout.block_size, layout.num_blocks, sequences, filled, others)


def traffic(
    step: DecodeStep,
    heads: Heads,
    cut: Cut,
    *,
    window: int | None = None,
    splits: int | None = None,
    tile: int | None = None,
) -> Traffic:
    """What one layer's decode attention reads.

    Args:
        step: of `step_of`.
        heads: of the model.
        cut: of the device.
        window: of the layer: a query sees itself and the window - 1 positions before it.
        splits: shares of each context; None takes the kernel's own choice for the device.
        tile: tokens of one turn; None takes the device's setting.
    """
    settings = settings_for("decode", heads.dtype, heads.head_dim, step.block_size, cut.arch)
    lengths = [sequence.seq_len for sequence in step.sequences]
    tables = [sequence.table for sequence in step.sequences]
    tile = tile or settings.tile
    if splits is None:
        splits = split_count(
            max(1, len(lengths)), heads.num_kv_heads, max(lengths, default=0),
            cut.multiprocessors, settings.waves,
        )  # fmt: skip
    one_head = decode_programs(
        lengths, tables, step.block_size, 1, splits, tile=tile, sliding_window=window
    )
    seen = [min(length, window or length) for length in lengths]
    programs = tuple(_program(p) for p in one_head if p.num_tokens)
    reads = sum(len(program.blocks) for program in programs)
    row = heads.token_bytes * heads.num_kv_heads
    return Traffic(
        heads=heads, window=window, tile=tile, splits=splits, programs=programs,
        num_programs=len(one_head) * heads.num_kv_heads,
        shared_bytes=sum(seen) * row,
        separate_bytes=sum(seen) * row * heads.group,
        padded_bytes=len(seen) * max(seen, default=0) * row,
        blocks_touched=len({block for program in programs for block in program.blocks}),
        block_reads=reads,
        idle_lanes=sum(len(p.turns) * tile - (p.end - p.begin) for p in programs),
    )  # fmt: skip


def _windows(model: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """Each layer's window as the model's facts say; empty when they don't, or say nonsense."""
    found = model.get("windows")
    if not isinstance(found, list) or len(found) != layers:
        return ()
    if any(w is not None and (type(w) is not int or w < 1) for w in found):
        return ()
    return tuple(found)


def _program(program: DecodeProgram) -> Program:
    return Program(program.seq, program.split, program.begin, program.end, program.tiles)


def _sequence(snapshot: Snapshot, seq_id: str) -> DecodeSequence:
    view = snapshot.sequences[seq_id]
    table: Sequence[int] = view.table
    if snapshot.layout.is_contiguous:
        table = _slots(snapshot, seq_id)
    return DecodeSequence(seq_id, view.label, view.stored, tuple(table))


def _slots(snapshot: Snapshot, seq_id: str) -> range:
    """The written slots of a sequence's region; in contiguous memory a slot is a block."""
    start = snapshot.region_of[seq_id].start
    return range(start, start + snapshot.sequences[seq_id].stored)
