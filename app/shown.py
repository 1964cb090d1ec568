"""What the player can show: a recorded run, an opened file, or a live run's trace, with its log.

It owns reading traces within the app's limits. It does not know Streamlit.
"""

import gzip
import io
import json
import os
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

from core.errors import LimitError, TraceError
from core.trace.delta_log import encode
from core.trace.events import (
    BlockCopied,
    BlockShared,
    Event,
    RequestPreempted,
    SlotsWritten,
)
from core.trace.trace import Header, Trace, load_trace
from core.workload.scenario import scenario_names

__all__ = ["Shown", "log_header", "open_upload", "recorded", "recorded_names"]

_TRACES = Path(__file__).parents[1] / "assets" / "traces"
_MAX_UPLOAD = 16 << 20
_MAX_EXPANDED = 96 << 20
_MAX_BLOCKS = 1 << 18
_MAX_SLOTS = 1 << 20  # of contiguous memory
_MAX_HEADER = 1 << 20
_LOOK_AHEAD = 5000
_TELLING: tuple[type[Event], ...] = (BlockCopied, RequestPreempted, BlockShared, SlotsWritten)
Source = Literal["recorded", "live", "file"]


@dataclass(frozen=True, slots=True)
class Shown:
    """A run with its log.

    Attributes:
        key: names it for the player.
        label: what the place where it was opened calls it, by language; {} where a scenario does.
    """

    key: str
    trace: Trace
    log: bytes
    source: Source
    is_live: bool = False
    label: Mapping[str, str] = field(default_factory=dict)

    @property
    def opening(self) -> int:
        """Events to have applied when the run is first seen: a telling moment, or a live run's end.

        An empty pool says nothing to a newcomer.
        """
        if self.is_live:
            return len(self.trace.events)
        found: dict[type[Event], int] = {}
        for event in islice(self.trace.events, _LOOK_AHEAD):
            found.setdefault(type(event), event.index + 1)
        return next((found[kind] for kind in _TELLING if kind in found), 0)


def recorded_names() -> list[str]:
    """Scenarios that come with a recorded run, in teaching order."""
    return [name for name in scenario_names() if (_TRACES / f"{name}.jsonl.gz").is_file()]


@cache
def recorded(name: str) -> Shown:
    """The recorded run of a scenario; shared by all visitors.

    Raises:
        TraceError: the file is damaged.
    """
    trace = load_trace(_TRACES / f"{name}.jsonl.gz")
    return Shown(name, trace, encode(log_header(trace.header), trace.events), "recorded")


def open_upload(name: str, data: bytes) -> Shown:
    """An uploaded trace.

    Raises:
        LimitError: it is too large, or expands to too much.
        TraceError: it is no trace, or nothing of it can be read; the message bears `name`.
    """
    if len(data) > _MAX_UPLOAD:
        raise LimitError("upload_large", name=name, limit=_MAX_UPLOAD >> 20)
    _check_size(name, data)
    handle, path = tempfile.mkstemp(prefix="glassblock-upload-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        trace = load_trace(path)
        log = encode(log_header(trace.header), trace.events)
    except TraceError as fault:
        values = dict(fault.values)
        if "path" in values:
            values["path"] = name  # the visitor's own word, not the server's
        raise TraceError(fault.code, **values) from fault
    except Exception as fault:  # a file can be wrong in ways that nobody thought of
        raise TraceError("not_a_trace", path=name, detail=type(fault).__name__) from fault
    finally:
        Path(path).unlink(missing_ok=True)
    digest = zlib.crc32(data)
    return Shown(f"file-{digest:08x}-{len(data)}", trace, log, "file", label={"en": name})


def log_header(header: Header) -> dict[str, Any]:
    """The log's header, with plain values only."""
    plain: dict[str, Any] = json.loads(json.dumps(header.to_dict()))
    return plain


def _check_size(name: str, data: bytes) -> None:
    """Expands the file piece by piece, and reads its header, before anything is built from it."""
    if data[:2] != b"\x1f\x8b":
        first = data[:_MAX_HEADER].partition(b"\n")[0]
    else:
        first = _first_line_of_gzip(name, data)
    try:
        config = json.loads(first)["glassblock"]["config"]
        blocks, size = int(config["num_blocks"]), max(1, int(config["block_size"]))
        is_contiguous = config.get("allocator") == "contiguous"
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return  # load_trace says what is wrong
    limit = min(_MAX_BLOCKS, _MAX_SLOTS // size) if is_contiguous else _MAX_BLOCKS
    if blocks > limit:
        raise LimitError("upload_blocks", name=name, blocks=blocks, limit=limit)


def _first_line_of_gzip(name: str, data: bytes) -> bytes:
    first, total = b"", 0
    source: IO[bytes] = gzip.GzipFile(fileobj=io.BytesIO(data))  # type: ignore[assignment]
    try:
        while piece := source.read(1 << 20):
            first = first or piece.partition(b"\n")[0]
            total += len(piece)
            if total > _MAX_EXPANDED:
                raise LimitError("upload_expands", name=name, limit=_MAX_EXPANDED >> 20)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        pass  # a cut file: what can be read is kept, and load_trace warns
    return first
