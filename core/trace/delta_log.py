"""The binary delta log: a run's events as compact bytes, for the player and the offline page.

It owns the bytes and nothing else: what an event means is the fold's matter. The header's JSON
carries the event schema (types, fields, kinds), so a reader in another language never guesses.

    log     = b"GBDL" u8:version u32:length header records
    record  = 0 length utf-8                  the next string (strings are numbered from 0)
            | 1 type phase at code values     the next shape (shapes are numbered from 0)
            | shape + 2, time, reason values, fields

A shape is what events of one kind and cause share: type, phase, place, reason code, and the names
and kinds of the reason's values. `time` holds the change of the step and, in its low bit, whether
the index is not simply one more than before. Integers are varints, signed ones zigzag-coded; a
string is its number; a float is eight bytes.

Invariant: bytes only ever grow by whole events, so any earlier state of a log is a prefix of it.
"""

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from core.errors import TraceError
from core.trace.events import EVENT_TYPES, PHASES, Event, Reason, field_kinds

__all__ = ["DeltaLogWriter", "decode", "encode"]

_MAGIC = b"GBDL"
_VERSION = 1
_STRING, _SHAPE, _FIRST_EVENT = 0, 1, 2
_BASE_FIELDS = ("step", "index", "phase", "at", "reason")
_SCHEMA_KEY = "log_schema"
_F64 = struct.Struct("<d")

_TYPE_NAMES = tuple(EVENT_TYPES)
_TYPE_CODES = {cls: code for code, cls in enumerate(EVENT_TYPES.values())}
_OWN_FIELDS: dict[type[Event], tuple[tuple[str, str], ...]] = {
    cls: tuple((n, k) for n, k in field_kinds(cls).items() if n not in _BASE_FIELDS)
    for cls in EVENT_TYPES.values()
}

_ShapeKey = tuple[type[Event], str, str, str, tuple[tuple[str, bool], ...]]


def encode(header: Mapping[str, Any], events: Iterable[Event]) -> bytes:
    """The log of a whole run."""
    writer = DeltaLogWriter(header)
    writer.extend(events)
    return writer.getvalue()


def decode(log: bytes) -> tuple[dict[str, Any], list[Event]]:
    """The header and the events of `encode`.

    Raises:
        TraceError: no delta log, an unknown version, or bytes that are cut or damaged.
    """
    try:
        return _decode(log)
    except (IndexError, KeyError, UnicodeDecodeError, ValueError, struct.error) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError("delta_log_damaged", detail=str(error)) from error


class DeltaLogWriter:
    """A growing log; every value of `getvalue` is a valid log and a prefix of the next one."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        plain = json.dumps({**header, _SCHEMA_KEY: _schema()}, ensure_ascii=False).encode()
        self._bytes = bytearray(_MAGIC + struct.pack("<BI", _VERSION, len(plain)) + plain)
        self._strings: dict[str, int] = {}
        self._shapes: dict[_ShapeKey, int] = {}
        self._step = 0
        self._index = -1
        self.num_events = 0

    def __len__(self) -> int:
        return len(self._bytes)

    def append(self, event: Event) -> None:
        """Adds one event."""
        body = bytearray()
        self._write_time(body, event)
        for value in event.reason.values.values():
            self._write(body, "str" if isinstance(value, str) else "int", value)
        for name, kind in _OWN_FIELDS[type(event)]:
            self._write(body, kind, getattr(event, name))
        shape = self._shape(event)
        _put(self._bytes, shape + _FIRST_EVENT)
        self._bytes += body
        self.num_events += 1

    def extend(self, events: Iterable[Event]) -> None:
        """Adds events in order."""
        for event in events:
            self.append(event)

    def getvalue(self) -> bytes:
        """The log so far."""
        return bytes(self._bytes)

    def _write_time(self, out: bytearray, event: Event) -> None:
        jump = event.index - self._index - 1
        _put(out, _zigzag(event.step - self._step) << 1 | (jump != 0))
        if jump:
            _put(out, _zigzag(jump))
        self._step, self._index = event.step, event.index

    def _shape(self, event: Event) -> int:
        values = event.reason.values
        names = tuple((name, isinstance(value, str)) for name, value in values.items())
        key = (type(event), event.phase, event.at, event.reason.code, names)
        if key in self._shapes:
            return self._shapes[key]
        record = bytearray()
        _put(record, _SHAPE)
        _put(record, _TYPE_CODES[type(event)])
        _put(record, PHASES.index(event.phase))
        _put(record, self._string(event.at))
        _put(record, self._string(event.reason.code))
        _put(record, len(names))
        for name, is_text in names:
            _put(record, self._string(name))
            _put(record, is_text)
        self._bytes += record
        self._shapes[key] = len(self._shapes)
        return self._shapes[key]

    def _string(self, text: str) -> int:
        """The string's number; a new one is defined in the log first."""
        number = self._strings.get(text)
        if number is None:
            number = self._strings[text] = len(self._strings)
            plain = text.encode()
            _put(self._bytes, _STRING)
            _put(self._bytes, len(plain))
            self._bytes += plain
        return number

    def _write(self, out: bytearray, kind: str, value: Any) -> None:
        if kind == "int":
            _put(out, _zigzag(value))
        elif kind == "bool":
            out.append(value)
        elif kind == "float":
            out += _F64.pack(value)
        elif kind == "str":
            _put(out, self._string(value))
        elif kind in ("ints", "strs"):
            _put(out, len(value))
            for item in value:
                self._write(out, kind[:-1], item)
        else:  # ints_by_name, floats_by_name
            _put(out, len(value))
            for name, item in value.items():
                _put(out, self._string(name))
                self._write(out, kind.split("s_")[0], item)


def _schema() -> dict[str, Any]:
    types = [[name, list(map(list, _OWN_FIELDS[EVENT_TYPES[name]]))] for name in _TYPE_NAMES]
    return {"phases": list(PHASES), "types": types}


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _put(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _decode(log: bytes) -> tuple[dict[str, Any], list[Event]]:
    if log[:4] != _MAGIC:
        raise TraceError("delta_log_magic")
    version, length = struct.unpack_from("<BI", log, 4)
    if version != _VERSION:
        raise TraceError("delta_log_version", version=version, known=_VERSION)
    header: dict[str, Any] = json.loads(log[9 : 9 + length])
    if header.pop(_SCHEMA_KEY) != _schema():
        raise TraceError("delta_log_version", version=f"{version}, other events", known=_VERSION)
    reader = _Reader(log, 9 + length)
    events: list[Event] = []
    while reader.at < len(log):
        event = reader.record()
        if event is not None:
            events.append(event)
    return header, events


class _Reader:
    """A position in a log with the strings and shapes that were defined before it."""

    def __init__(self, log: bytes, at: int) -> None:
        self._log = log
        self.at = at
        self._strings: list[str] = []
        self._shapes: list[_ShapeKey] = []
        self._step = 0
        self._index = -1
        self._readers: dict[str, Callable[[], Any]] = {
            "int": self._int,
            "bool": lambda: bool(self._varint()),
            "float": self._float,
            "str": lambda: self._strings[self._varint()],
            "ints": lambda: tuple(self._int() for _ in range(self._varint())),
            "strs": lambda: tuple(self._strings[self._varint()] for _ in range(self._varint())),
            "ints_by_name": lambda: self._by_name(self._int),
            "floats_by_name": lambda: self._by_name(self._float),
        }

    def record(self) -> Event | None:
        """The next record's event, or None for a definition."""
        tag = self._varint()
        if tag == _STRING:
            length = self._varint()
            self._strings.append(self._take(length).decode())
        elif tag == _SHAPE:
            self._shapes.append(self._shape())
        else:
            return self._event(self._shapes[tag - _FIRST_EVENT])
        return None

    def _shape(self) -> _ShapeKey:
        cls = EVENT_TYPES[_TYPE_NAMES[self._varint()]]
        phase = PHASES[self._varint()]
        at, code = self._strings[self._varint()], self._strings[self._varint()]
        count = self._varint()
        names = tuple((self._strings[self._varint()], bool(self._varint())) for _ in range(count))
        return cls, phase, at, code, names

    def _event(self, shape: _ShapeKey) -> Event:
        cls, phase, at, code, names = shape
        time = self._varint()
        self._step += _unzigzag(time >> 1)
        self._index += 1 + (self._int() if time & 1 else 0)
        read = self._readers
        values = {name: read["str" if is_text else "int"]() for name, is_text in names}
        own = {name: read[kind]() for name, kind in _OWN_FIELDS[cls]}
        base: dict[str, Any] = {
            "step": self._step,
            "index": self._index,
            "phase": phase,
            "at": at,
            "reason": Reason(code, values),
        }
        return cls(**base, **own)

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._log[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def _int(self) -> int:
        return _unzigzag(self._varint())

    def _float(self) -> float:
        value: float = _F64.unpack(self._take(8))[0]
        return value

    def _take(self, length: int) -> bytes:
        if self.at + length > len(self._log):
            raise IndexError("the log ends in the middle of a record")
        self.at += length
        return self._log[self.at - length : self.at]

    def _by_name(self, item: Callable[[], Any]) -> dict[str, Any]:
        return {self._strings[self._varint()]: item() for _ in range(self._varint())}


def _unzigzag(value: int) -> int:
    return value >> 1 if not value & 1 else -((value + 1) >> 1)
