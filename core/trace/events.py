"""The events of a run: frozen facts, from which everything that is shown is folded.

Every event has the step in which it happened (0 before the first step), a running number, the
phase of its step, the place in the source that did it, and a reason: a code with values, from
which `core.trace.explain` makes a sentence. Each event changes one thing; the comment beside its
class says how the fold (`core.trace.snapshot`, and the player's JavaScript) applies it.

The fields' types are limited to what the binary log can carry (see `FIELD_KINDS`).
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

from core.errors import TraceError

__all__ = [
    "EVENT_TYPES",
    "FIELD_KINDS",
    "PHASES",
    "BlockAllocated",
    "BlockCopied",
    "BlockEvicted",
    "BlockReleased",
    "BlockSealed",
    "BlockShared",
    "BlocksSwappedIn",
    "BlocksSwappedOut",
    "Event",
    "Phase",
    "PrefixCacheReset",
    "PrefixHit",
    "Reason",
    "RegionCopied",
    "RegionReleased",
    "RegionReserved",
    "RequestAdmitted",
    "RequestArrived",
    "RequestDeferred",
    "RequestFinished",
    "RequestPreempted",
    "RequestRejected",
    "RequestScheduled",
    "SequenceDropped",
    "SequenceFinished",
    "SequenceForked",
    "SlotsWritten",
    "StepEnded",
    "StepFailed",
    "TokenSampled",
    "field_kinds",
    "from_dict",
    "to_dict",
]

Phase = Literal["check", "allocate", "write", "sample", "free"]
PHASES: tuple[Phase, ...] = ("check", "allocate", "write", "sample", "free")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an event happened: a code of the catalogue and the values of its sentence."""

    code: str
    values: Mapping[str, int | str] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """What every event carries; `at` is "core/cache/manager.py:copy_on_write"."""

    step: int
    index: int
    phase: Phase
    at: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class RequestArrived(Event):
    """A request joined the waiting queue.

    Fold: a request with one waiting sequence of the same id, last in `waiting` (by priority and
    arrival when `policy` is "priority"). `texts[i]` is the text that prompt token i completed;
    `label` is a short display name.
    """

    request_id: str
    label: str
    prompt_token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    max_tokens: int
    num_sequences: int
    priority: int
    arrival: float


@dataclass(frozen=True, slots=True)
class RequestRejected(Event):
    """A request was refused at arrival. Fold: a finished request that never waited."""

    request_id: str
    label: str


@dataclass(frozen=True, slots=True)
class RequestDeferred(Event):
    """The first waiting request was not admitted in this step, for a reason not told before.

    Fold: it is `deferred`, until it is admitted or ends. `need`, `free` and `largest` (the largest
    free piece) are blocks, or slots in contiguous memory.
    """

    request_id: str
    need: int
    free: int
    largest: int


@dataclass(frozen=True, slots=True)
class PrefixHit(Event):
    """Leading full blocks were found. Fold: nothing; the BlockShared that follow do it."""

    seq_id: str
    block_ids: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class RequestAdmitted(Event):
    """A waiting, preempted or swapped request runs. Fold: out of its queue, last in `running`.

    `computed_tokens` of its sequences are in memory already (prefix hit, or swapped back).
    `queried_tokens` and `hit_tokens` count for the hit rate; `returning` after a preemption.
    """

    request_id: str
    computed_tokens: int
    queried_tokens: int
    hit_tokens: int
    returning: bool


@dataclass(frozen=True, slots=True)
class RequestScheduled(Event):
    """A sequence computes `tokens` tokens in this step. Fold: counts them for the timeline."""

    seq_id: str
    tokens: int
    kind: str  # "prefill" or "decode"
    start: int


@dataclass(frozen=True, slots=True)
class BlockAllocated(Event):
    """The head of the free queue got an owner.

    Fold: out of the free queue, ref_count 1, no slot written; the sequence's table gets it at
    `logical_index` (appended, or in place of the entry that a copy-on-write replaces).
    """

    block_id: int
    seq_id: str
    logical_index: int


@dataclass(frozen=True, slots=True)
class BlockEvicted(Event):
    """A free cached block lost its hash because it is handed out again. Fold: no hash."""

    block_id: int
    hash: str


@dataclass(frozen=True, slots=True)
class BlockShared(Event):
    """A further table holds the block.

    Fold: out of the free queue if it was there, ref_count as given, at `logical_index` of the
    table (appended, or replacing: by "merge").
    """

    block_id: int
    seq_id: str
    logical_index: int
    ref_count: int
    by: str  # "prefix", "fork", "merge" or "swap"


@dataclass(frozen=True, slots=True)
class SequenceForked(Event):
    """A sequence split.

    Fold: `child_id` joins the request with the parent's tokens and an empty table, which the
    BlockShared that follow fill.
    """

    request_id: str
    parent_id: str
    child_id: str
    label: str


@dataclass(frozen=True, slots=True)
class BlockCopied(Event):
    """Copy-on-write. Fold: the first `tokens` slots of destination hold what source's hold."""

    seq_id: str
    source: int
    destination: int
    tokens: int


@dataclass(frozen=True, slots=True)
class RegionReserved(Event):
    """A run of slots got an owner (contiguous memory).

    Fold: slots start .. start + size - 1 are taken; `length` of them are the sequence's, the rest
    is lost to rounding. Without a `seq_id` it is a spare of the request, for a sample or beam.
    """

    request_id: str
    seq_id: str
    start: int
    length: int
    size: int


@dataclass(frozen=True, slots=True)
class RegionCopied(Event):
    """A fork in contiguous memory.

    Fold: the spare region at `destination` is now the sequence's; its first `tokens` slots hold
    what those of the region at `source` hold.
    """

    seq_id: str
    source: int
    destination: int
    tokens: int


@dataclass(frozen=True, slots=True)
class RegionReleased(Event):
    """A region's slots are free. Fold: no region begins at `start`."""

    request_id: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class SlotsWritten(Event):
    """K and V of `token_ids` went to slots offset, offset + 1, ... of a block.

    Fold: those slots are written; the sequence has stored len(token_ids) tokens more. In
    contiguous memory `block_id` is where the sequence's region begins.
    """

    seq_id: str
    block_id: int
    offset: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockSealed(Event):
    """A full block can be found by its prefix.

    Fold: it has `hash` (hex); `token_ids` are its own.
    """

    block_id: int
    seq_id: str
    hash: str
    parent_hash: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenSampled(Event):
    """A sequence got a token. Fold: appended to its tokens; `text` is what it completed."""

    seq_id: str
    token_id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class SequenceFinished(Event):
    """A sequence is complete. Fold: it leaves the request's live sequences; no host table."""

    seq_id: str
    finish_reason: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class SequenceDropped(Event):
    """A beam lost. Fold: as SequenceFinished, with nothing to show for it.

    In contiguous memory its region becomes a spare of the request.
    """

    seq_id: str


@dataclass(frozen=True, slots=True)
class BlockReleased(Event):
    """A table gave up the block.

    Fold: out of the table, if it is still there; ref_count as given; when that is 0, into the
    free queue behind block `after` (-1: at the head), keeping its hash.
    """

    block_id: int
    seq_id: str
    logical_index: int
    ref_count: int
    after: int


@dataclass(frozen=True, slots=True)
class RequestPreempted(Event):
    """A running request loses its memory.

    Fold: out of `running`; "recompute": first in `waiting` (by priority and arrival when
    `policy` is "priority") with nothing stored; "swap": last in `swapped`.
    """

    request_id: str
    mode: str  # "recompute" or "swap"
    blocks: int
    tokens_to_recompute: int


@dataclass(frozen=True, slots=True)
class BlocksSwappedOut(Event):
    """Blocks went to host memory.

    Fold: host block hosts[i] holds what blocks[i] held, and the request's tables are kept as
    host tables; the BlockReleased that follow empty them here.
    """

    request_id: str
    blocks: tuple[int, ...]
    hosts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlocksSwappedIn(Event):
    """Blocks came back, after BlockAllocated and BlockShared rebuilt the tables.

    Fold: blocks[i] holds what host block hosts[i] held; the host blocks are free again.
    """

    request_id: str
    hosts: tuple[int, ...]
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RequestFinished(Event):
    """A request is complete, aborted or failed. Fold: out of whichever queue holds it."""

    request_id: str
    finish_reason: str


@dataclass(frozen=True, slots=True)
class PrefixCacheReset(Event):
    """All hashes were dropped. Fold: no block has a hash."""

    blocks: int


@dataclass(frozen=True, slots=True)
class StepFailed(Event):
    """The forward failed: nothing of this step was written. Fold: nothing by itself."""

    error: str
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepEnded(Event):
    """A step is over; the counts let a reader check its fold.

    `timings` are seconds, `memory` is bytes, both by part. In contiguous memory a slot counts as
    a block: owned are those of all regions.
    """

    scheduled_tokens: int
    free_blocks: int
    owned_blocks: int
    cached_free_blocks: int
    written_slots: int
    running: int
    waiting: int
    swapped: int
    timings: Mapping[str, float]
    memory: Mapping[str, int]


EVENT_TYPES: dict[str, type[Event]] = {
    cls.__name__: cls
    for cls in (
        RequestArrived,
        RequestRejected,
        RequestDeferred,
        PrefixHit,
        RequestAdmitted,
        RequestScheduled,
        BlockAllocated,
        BlockEvicted,
        BlockShared,
        SequenceForked,
        BlockCopied,
        RegionReserved,
        RegionCopied,
        RegionReleased,
        SlotsWritten,
        BlockSealed,
        TokenSampled,
        SequenceFinished,
        SequenceDropped,
        BlockReleased,
        RequestPreempted,
        BlocksSwappedOut,
        BlocksSwappedIn,
        RequestFinished,
        PrefixCacheReset,
        StepFailed,
        StepEnded,
    )
}

# How a field's Python type is called in the binary log and in the JSON Schema.
FIELD_KINDS: dict[Any, str] = {
    int: "int",
    float: "float",
    bool: "bool",
    str: "str",
    Phase: "phase",
    Reason: "reason",
    tuple[int, ...]: "ints",
    tuple[str, ...]: "strs",
    Mapping[str, float]: "floats_by_name",
    Mapping[str, int]: "ints_by_name",
}


def field_kinds(cls: type[Event]) -> dict[str, str]:
    """The fields of an event type in order, each with its kind."""
    hints = get_type_hints(cls)
    return {field.name: FIELD_KINDS[hints[field.name]] for field in dataclasses.fields(cls)}


_KINDS: dict[type[Event], dict[str, str]] = {cls: field_kinds(cls) for cls in EVENT_TYPES.values()}


def to_dict(event: Event) -> dict[str, Any]:
    """Plain JSON values, the type's name under "type"."""
    plain: dict[str, Any] = {"type": type(event).__name__}
    for name, kind in _KINDS[type(event)].items():
        value = getattr(event, name)
        if kind == "reason":
            value = {"code": value.code, **value.values}
        elif kind in ("ints", "strs"):
            value = list(value)
        elif kind.endswith("_by_name"):
            value = dict(value)
        plain[name] = value
    return plain


def from_dict(plain: Mapping[str, Any]) -> Event:
    """The event of `to_dict`.

    Raises:
        TraceError: an unknown type, a missing or unknown field, or a value of the wrong kind.
    """
    cls = EVENT_TYPES.get(str(plain.get("type")))
    if cls is None:
        raise TraceError("event_type", type=plain.get("type"))
    kinds = _KINDS[cls]
    values: dict[str, Any] = {}
    for name, kind in kinds.items():
        if name not in plain:
            raise TraceError("event_field_missing", type=cls.__name__, field=name)
        values[name] = _parse(cls.__name__, name, kind, plain[name])
    extra = plain.keys() - kinds.keys() - {"type"}
    if extra:
        raise TraceError("event_field_unknown", type=cls.__name__, field=sorted(extra)[0])
    return cls(**values)


def _parse(type_name: str, name: str, kind: str, value: Any) -> Any:
    good, convert = _PARSERS[kind]
    if not good(value):
        raise TraceError(
            "event_field_value", type=type_name, field=name, kind=kind, value=repr(value)[:60]
        )
    return convert(value)


def _is_int(value: Any) -> bool:
    """A whole number of 64 bits: no larger one can be told, and a float holds each of these."""
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


def _is_number(value: Any) -> bool:
    return (isinstance(value, float) and math.isfinite(value)) or _is_int(value)


def _reason(value: dict[str, Any]) -> Reason:
    return Reason(value["code"], {name: item for name, item in value.items() if name != "code"})


def _is_reason(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("code"), str)
        and all(_is_int(item) or isinstance(item, str) for item in value.values())
    )


_PARSERS: dict[str, tuple[Any, Any]] = {
    "int": (_is_int, int),
    "float": (_is_number, float),
    "bool": (lambda v: isinstance(v, bool), bool),
    "str": (lambda v: isinstance(v, str), str),
    "phase": (lambda v: v in PHASES, str),
    "reason": (_is_reason, _reason),
    "ints": (lambda v: isinstance(v, list) and all(map(_is_int, v)), tuple),
    "strs": (lambda v: isinstance(v, list) and all(isinstance(i, str) for i in v), tuple),
    "floats_by_name": (
        lambda v: isinstance(v, dict) and all(map(_is_number, v.values())),
        lambda v: {k: float(i) for k, i in v.items()},
    ),
    "ints_by_name": (lambda v: isinstance(v, dict) and all(map(_is_int, v.values())), dict),
}
