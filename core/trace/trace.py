"""Trace: a header and its events, in memory or in a file.

On disk a trace is JSON Lines (gzip when the name ends in `.gz`): the header, then one event a
line. Saving is atomic: a file under that name is always whole. Loading keeps what it can: a
damaged or cut file yields everything up to its last whole step, and a warning that says where.
"""

import gzip
import json
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from core.config import EngineConfig
from core.errors import ConfigError, TraceError
from core.text import Phrase
from core.trace import events as ev
from core.trace.recorder import EventStore
from core.trace.snapshot import Layout, Snapshot, fold

__all__ = [
    "SCHEMA_VERSION",
    "Header",
    "Trace",
    "check_layout",
    "check_writable",
    "load_trace",
    "make_schema",
]

SCHEMA_VERSION = 1
_MAX_EXPANDED = 2 << 30  # bytes that a compressed trace may expand to
_MAX_LINE = 64 << 20
_MAX_BLOCKS = 1 << 20  # a header of a few bytes must not fill the reader's memory
_MAX_SLOTS = 1 << 34  # contiguous memory is read region by region: its size takes no room


@dataclass(frozen=True, slots=True)
class Header:
    """What a reader must know before the first event.

    Attributes:
        config: the engine's settings (`EngineConfig.to_dict`).
        model: name, shape, dtype, device and threads; what `measured` figures were measured on.
        measured: False when a simulated runner produced the times.
        title: what the run shows, by language.
    """

    config: Mapping[str, Any]
    model: Mapping[str, Any] = field(default_factory=dict)
    measured: bool = True
    title: Mapping[str, str] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """What a fold must know."""
        return Layout.from_config(self.config)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the schema version first."""
        return {
            "schema": SCHEMA_VERSION,
            "config": dict(self.config),
            "model": dict(self.model),
            "measured": self.measured,
            "title": dict(self.title),
        }


@dataclass(slots=True)
class Trace:
    """A run: its header and its events.

    Attributes:
        damage: what was lost on loading, None when nothing.
    """

    header: Header
    events: EventStore
    damage: TraceError | None = None

    @property
    def warning(self) -> str:
        """What was lost on loading as an English sentence, "" when nothing."""
        return "" if self.damage is None else self.damage.sentence()

    @property
    def num_steps(self) -> int:
        """The number of the last step."""
        last = 0
        for event in self.events.since(max(0, len(self.events) - 1)):
            last = event.step
        return last

    def snapshot(self, step: int | None = None) -> Snapshot:
        """The state after `step` (0: before the first step), or after the last event.

        Raises:
            TraceError: there is no such step, or an event can't follow its state.
        """
        if step is None:
            return fold(self.header.layout, self.events)
        if not 0 <= step <= self.num_steps:
            raise TraceError("no_such_step", step=step, last=self.num_steps)
        return fold(self.header.layout, self._until(step))

    def _until(self, step: int) -> Iterator[ev.Event]:
        """Events up to the end of `step`; arrivals that were noticed after it come later."""
        ended = step == 0
        for event in self.events:
            if event.step > step or (ended and step and event.step == step):
                return
            yield event
            ended = event.step == step and isinstance(event, ev.StepEnded)

    def save(self, path: str | Path) -> None:
        """Writes the trace; an existing file is replaced only once the new one is whole.

        A link is followed. Anything else that is no file (a folder, a device, a pipe) is refused:
        replacing it would destroy it.

        Raises:
            TraceError: the place can't be written to, or the disk is full.
        """
        check_writable(path)
        target = Path(path).resolve()
        try:
            handle, name = tempfile.mkstemp(dir=target.parent or ".", prefix=f".{target.name}.")
        except OSError as error:
            raise TraceError("unwritable", path=target, detail=error.strerror) from error
        try:
            with os.fdopen(handle, "wb") as raw:
                self._write(raw, compress=target.suffix == ".gz")
            os.chmod(name, 0o644)  # mkstemp makes it private
            os.replace(name, target)
        except OSError as error:
            Path(name).unlink(missing_ok=True)
            raise TraceError("unwritable", path=target, detail=error.strerror) from error
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _write(self, raw: IO[bytes], *, compress: bool) -> None:
        # mtime 0: equal traces make equal files.
        out: IO[bytes] = gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) if compress else raw  # type: ignore[assignment]
        out.write(_line({"glassblock": self.header.to_dict()}))
        for event in self.events:
            out.write(_line(ev.to_dict(event)))
        if compress:
            out.close()


def check_writable(path: str | Path) -> None:
    """Tells before a run whether its trace can be saved there.

    Raises:
        TraceError: it can't.
    """
    try:
        target = Path(path).resolve()
        is_other = target.exists() and not target.is_file()
        if not is_other:
            with tempfile.TemporaryFile(dir=target.parent):
                pass
    except (OSError, ValueError) as error:
        detail = getattr(error, "strerror", None) or error
        raise TraceError("unwritable", path=path, detail=detail) from error
    if is_other:
        raise TraceError("unwritable", path=path, detail="it is no file")


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def load_trace(path: str | Path) -> Trace:
    """Reads a trace file.

    Raises:
        TraceError: the file can't be read, is no glassblock trace, is of an unknown version, or
            has no whole step.
    """
    lines = _read_lines(path)
    try:
        header = _parse_header(next(lines, (0, b"")), path)
        trace = Trace(header, EventStore())
        _read_events(trace, lines)
    except _Damaged as damage:
        raise TraceError("not_a_trace", path=path, detail=damage.detail) from damage
    return trace


class _Damaged(Exception):
    """What is wrong in a line; `detail` reads in any language."""

    def __init__(self, line: int, detail: Phrase | TraceError) -> None:
        super().__init__(str(detail))
        self.line, self.detail = line, detail


def _read_lines(path: str | Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines; a fault in the file itself ends them with `_Damaged`."""
    number, size = 0, 0
    try:
        with open(path, "rb") as raw:
            compressed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            source: IO[bytes] = gzip.GzipFile(fileobj=raw) if compressed else raw  # type: ignore[assignment]
            while line := source.readline(_MAX_LINE):
                number, size = number + 1, size + len(line)
                if len(line) == _MAX_LINE:
                    raise TraceError("line_too_long", path=path, line=number, limit=_MAX_LINE >> 20)
                if size > _MAX_EXPANDED:
                    raise TraceError("trace_too_large", path=path, limit=_MAX_EXPANDED >> 20)
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _Damaged(number + 1, _because("gzip")) from error
    except OSError as error:
        raise TraceError("unreadable", path=path, detail=error.strerror or str(error)) from error


def _parse_header(numbered: tuple[int, bytes], path: str | Path) -> Header:
    try:
        plain = json.loads(numbered[1])["glassblock"]
        version = plain["schema"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TraceError("not_a_trace", path=path, detail=_because("no_header")) from error
    if version != SCHEMA_VERSION:
        raise TraceError("trace_version", path=path, version=version, known=SCHEMA_VERSION)
    try:
        header = Header(
            config=dict(plain["config"]),
            model=dict(plain["model"]),
            measured=bool(plain["measured"]),
            title=dict(plain["title"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        detail = _because("header", detail=repr(error))
        raise TraceError("not_a_trace", path=path, detail=detail) from error
    _check_config(header)
    return header


def _check_config(header: Header) -> None:
    """Refuses settings that no engine has, before the first event is read.

    Raises:
        TraceError: a setting is missing, unknown or out of range.
    """
    try:
        EngineConfig.from_dict(dict(header.config))
    except (ConfigError, TypeError) as error:
        raise TraceError("header_config", detail=error) from error
    check_layout(header.layout)


def check_layout(layout: Layout) -> None:
    """Refuses sizes that would fill a reader's memory before the first event.

    Raises:
        TraceError: no trace of such a memory can be read.
    """
    limit = _MAX_SLOTS if layout.is_contiguous else _MAX_BLOCKS
    if layout.num_blocks > limit:
        raise TraceError("trace_blocks", blocks=layout.num_blocks, limit=limit)
    if layout.num_blocks < 1 or not 1 <= layout.block_size <= 1024:
        detail = f"num_blocks={layout.num_blocks}, block_size={layout.block_size}"
        raise TraceError("header_config", detail=detail)


def _read_events(trace: Trace, lines: Iterator[tuple[int, bytes]]) -> None:
    """Takes events while they are whole, legal and in order; keeps up to the last whole step."""
    snapshot = Snapshot(trace.header.layout)
    pending: list[ev.Event] = []
    number = 1
    try:
        for number, line in lines:
            event = _parse_event(number, line, snapshot)
            snapshot.apply(event)
            pending.append(event)
            if isinstance(event, ev.StepEnded):
                _keep(trace, pending)
        _check_end(snapshot, pending, number)
    except (_Damaged, TraceError) as fault:
        detail = fault.detail if isinstance(fault, _Damaged) else fault
        line_number = fault.line if isinstance(fault, _Damaged) else number
        if not len(trace.events):
            where = _because("at_line", line=line_number, detail=detail)
            raise _Damaged(line_number, where) from fault
        trace.damage = TraceError("cut", line=line_number, step=trace.num_steps, detail=detail)
        return
    _keep(trace, pending)  # what came after the last step: arrivals, aborts


def _keep(trace: Trace, pending: list[ev.Event]) -> None:
    for event in pending:
        trace.events.append(event)
    pending.clear()


def _check_end(snapshot: Snapshot, pending: list[ev.Event], number: int) -> None:
    """Refuses a file that was cut between two lines of a step."""
    ended = snapshot.last_step.step if snapshot.last_step else 0
    if any(event.step > ended for event in pending):
        raise _Damaged(number + 1, _because("ends_within", step=snapshot.step))


def _parse_event(number: int, line: bytes, before: Snapshot) -> ev.Event:
    try:
        plain = json.loads(line)
        if not isinstance(plain, dict):
            raise _Damaged(number, _because("no_object"))
        event = ev.from_dict(plain)
    except TraceError as error:
        raise _Damaged(number, error) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _Damaged(number, _because("no_event", detail=str(error))) from error
    if event.index != before.index + 1:
        raise _Damaged(number, _because("event_order", now=event.index, before=before.index))
    if event.step not in (before.step, before.step + 1):
        raise _Damaged(number, _because("step_order", now=event.step, before=before.step))
    return event


def _because(key: str, **values: object) -> Phrase:
    """What is wrong with a file, in words that the sentence around it puts in its language."""
    return Phrase(f"trace.damage.{key}", values)


_JSON_TYPES: dict[str, dict[str, Any]] = {
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "str": {"type": "string"},
    "phase": {"enum": list(ev.PHASES)},
    "reason": {
        "type": "object",
        "required": ["code"],
        "properties": {"code": {"type": "string"}},
        "additionalProperties": {"type": ["integer", "string"]},
    },
    "ints": {"type": "array", "items": {"type": "integer"}},
    "strs": {"type": "array", "items": {"type": "string"}},
    "floats_by_name": {"type": "object", "additionalProperties": {"type": "number"}},
    "ints_by_name": {"type": "object", "additionalProperties": {"type": "integer"}},
}


def make_schema() -> dict[str, Any]:
    """The JSON Schema of one line of a trace; `assets/trace.schema.json` is this, a test says."""
    header = {
        "type": "object",
        "required": ["glassblock"],
        "properties": {
            "glassblock": {
                "type": "object",
                "required": ["schema", "config", "model", "measured", "title"],
                "properties": {"schema": {"const": SCHEMA_VERSION}},
            }
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "glassblock trace, one line",
        "anyOf": [header, *(_event_schema(cls) for cls in ev.EVENT_TYPES.values())],
    }


def _event_schema(cls: type[ev.Event]) -> dict[str, Any]:
    kinds = ev.field_kinds(cls)
    return {
        "type": "object",
        "title": cls.__name__,
        "description": " ".join((cls.__doc__ or "").split()),
        "required": ["type", *kinds],
        "properties": {
            "type": {"const": cls.__name__},
            **{name: _JSON_TYPES[kind] for name, kind in kinds.items()},
        },
        "additionalProperties": False,
    }
