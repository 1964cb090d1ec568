"""Reading rows: numbered lines of a file, checked values, and what to do with a bad row.

It owns the way from a path to requests that all formats share; it does not know any format. A
format yields, for each entry, its line and a request, `None` (an entry that is fine and yet no
request, such as a failed one) or the `BadRow` that says what is wrong with it.
"""

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TypeVar

from core.errors import WorkloadError
from core.workload.requests import WorkloadRequest

__all__ = [
    "BadRow",
    "Collected",
    "Entry",
    "collect",
    "count_of",
    "csv_rows",
    "head_of",
    "json_lines",
    "number_of",
    "open_text",
    "parsed",
]

_MAX_TOKENS = 1 << 20  # `SamplingParams` takes no longer answer, and no model a longer context
_MAX_SECONDS = 10**9  # thirty years; a float still tells a millisecond then
_MAX_LINE = 16 << 20  # characters of a JSON line; one request's line is thousands
_MAX_ROW = 1 << 20  # characters of a CSV row; one request's row is a hundred
_HEAD = 1 << 16
_PACKED = (b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"(\xb5/\xfd")  # gz zip bz2 xz zst

Row = TypeVar("Row")
Entry = tuple[int, "WorkloadRequest | BadRow | None"]


class BadRow(Exception):
    """What is wrong with one row: a code and values of the catalogue's `error` section."""

    def __init__(self, code: str, /, **values: object) -> None:
        super().__init__(code)
        self.code, self.values = code, values


@dataclass(frozen=True, slots=True)
class Collected:
    """The requests of a file; `left_out` entries were fine and no requests, `bad` were broken."""

    requests: tuple[WorkloadRequest, ...]
    left_out: int
    bad: int


def open_text(path: Path, name: str) -> IO[str]:
    """Opens a text file for reading; a byte order mark is dropped.

    Raises:
        WorkloadError: it is missing, a folder or a device, compressed, binary or empty.
    """
    try:
        is_folder, is_other = path.is_dir(), path.exists() and not path.is_file()
        head = b""
        if not (is_folder or is_other):
            with path.open("rb") as raw:
                head = raw.read(_HEAD)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        detail = getattr(error, "strerror", None) or error
        raise WorkloadError("unreadable", path=name, detail=detail) from error
    if is_folder:
        raise WorkloadError("workload_folder", path=name)
    if is_other:
        raise WorkloadError("unreadable", path=name, detail="it is no file")
    if head.startswith(_PACKED):
        raise WorkloadError("workload_compressed", path=name)
    if b"\0" in head:
        raise WorkloadError("workload_binary", path=name)
    if not head.removeprefix(b"\xef\xbb\xbf").strip():
        raise WorkloadError("workload_empty", path=name)
    return path.open(encoding="utf-8-sig", newline="")


def head_of(file: IO[str]) -> str:
    """The first line that isn't blank (cut when it is very long); the file is rewound."""
    for _ in range(_HEAD):
        line = file.readline(_HEAD)
        if not line or line.strip():
            break
    file.seek(0)
    return line.strip()


def csv_rows(
    file: IO[str], columns: Mapping[str, tuple[str, ...]], optional: frozenset[str] = frozenset()
) -> Iterator[tuple[int, dict[str, str] | BadRow]]:
    """Rows of a CSV file as values by our names, each with the line where it starts.

    Args:
        file: at its beginning.
        columns: our name of each column, and how the file may call it (lower case).
        optional: our names of those that may be missing.

    Yields:
        A `BadRow` for the header if a column is missing, and for a row with too few or too many
        cells.
    """
    lines = _Lines(file)
    rows = csv.reader(lines)
    places: dict[str, int] = {}
    width, line = 0, 1
    while True:
        lines.begin_row()
        try:
            cells = next(rows, None)
        except _TooLong:
            yield line, BadRow("workload_long_line", limit=f"{_MAX_ROW:,}")
            cells = []
        except csv.Error as error:
            yield line, BadRow("workload_broken", detail=error)
            cells = []
        if cells is None:
            return
        if cells and not places:
            places, width = _places(cells, columns, optional, line), len(cells)
        elif len(cells) not in (0, width):
            yield line, BadRow("workload_cells", found=len(cells), expected=width)
        elif cells:
            yield line, {name: cells[place] for name, place in places.items()}
        line = lines.number + 1


class _Lines:
    """Lines for `csv.reader`, which by itself takes rows of any length, of any number of lines.

    Attributes:
        number: of the last line.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._left = _MAX_ROW
        self.number = 0

    def begin_row(self) -> None:
        """The next line begins a row."""
        self._left = _MAX_ROW

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = self._file.readline(self._left + 1)
        if not line:
            raise StopIteration
        self.number += 1
        if len(line) > self._left:
            while line and not line.endswith(("\n", "\r")):
                line = self._file.readline(_MAX_ROW)
            raise _TooLong
        self._left -= len(line)
        return line


class _TooLong(Exception):
    """A row that goes on and on."""


def _places(
    header: list[str],
    columns: Mapping[str, tuple[str, ...]],
    optional: frozenset[str],
    line: int,
) -> dict[str, int]:
    found = [cell.strip().lower() for cell in header]
    places = {}
    for name, titles in columns.items():
        place = next((found.index(title) for title in titles if title in found), None)
        if place is not None:
            places[name] = place
        elif name not in optional:
            raise _NoColumn(line, titles[0], ", ".join(cell.strip() for cell in header)[:200])
    return places


class _NoColumn(Exception):
    """A header without a column; no row can be read, so skipping does not help."""

    def __init__(self, line: int, column: str, found: str) -> None:
        super().__init__(column)
        self.line, self.column, self.found = line, column, found


def json_lines(file: IO[str]) -> Iterator[tuple[int, dict[str, Any] | BadRow]]:
    """The object in each line of a JSON Lines file; blank lines are passed over."""
    number = 0
    while line := file.readline(_MAX_LINE):
        number += 1
        if len(line) == _MAX_LINE and not line.endswith("\n"):
            yield number, BadRow("workload_long_line", limit=f"{_MAX_LINE:,}")
            while (rest := file.readline(_MAX_LINE)) and not rest.endswith("\n"):
                pass
            continue
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, BadRow("workload_broken", detail=error)
            continue
        is_object = isinstance(value, dict)
        yield number, value if is_object else BadRow("workload_no_object", found=line.strip()[:40])


def parsed(
    rows: Iterator[tuple[int, Row | BadRow]], parse: Callable[[Row], WorkloadRequest | None]
) -> Iterator[Entry]:
    """Each row parsed; what `parse` raises as a `BadRow` is yielded."""
    for line, row in rows:
        if isinstance(row, BadRow):
            yield line, row
            continue
        try:
            yield line, parse(row)
        except BadRow as bad:
            yield line, bad


def collect(
    entries: Iterator[Entry], name: str, *, skip_bad_rows: bool, limit: int | None
) -> Collected:
    """The requests of a file, their arrivals counted from the first one.

    Raises:
        WorkloadError: a bad row, unless they are skipped; a header without a column; text that
            isn't UTF-8; or no request at all.
    """
    requests: list[WorkloadRequest] = []
    left_out = bad = 0
    first = before = -math.inf
    try:
        for line, entry in entries:
            if isinstance(entry, WorkloadRequest) and entry.arrival < before:
                entry = BadRow("workload_order")
            elif isinstance(entry, WorkloadRequest) and requests:
                entry = _in_time(entry, first)
            if isinstance(entry, BadRow):
                if not skip_bad_rows:
                    raise WorkloadError(entry.code, path=name, line=line, **entry.values)
                bad += 1
            elif entry is None:
                left_out += 1
            else:
                before = entry.arrival
                first = first if requests else before
                requests.append(replace(entry, arrival=before - first))
                if len(requests) == limit:
                    break
    except _NoColumn as lack:
        raise WorkloadError(
            "workload_column", path=name, line=lack.line, column=lack.column, found=lack.found
        ) from lack
    except UnicodeDecodeError as error:
        raise WorkloadError("workload_binary", path=name) from error
    if not requests:
        raise WorkloadError("workload_no_requests", path=name, skipped=bad + left_out)
    return Collected(tuple(requests), left_out, bad)


def _in_time(entry: WorkloadRequest, first: float) -> WorkloadRequest | BadRow:
    """The request, unless it comes absurdly late: a clock would no longer move by a step."""
    seconds = entry.arrival - first
    if seconds <= _MAX_SECONDS:
        return entry
    return BadRow("workload_far", seconds=f"{seconds:.4g}", limit=_MAX_SECONDS)


def count_of(value: object, column: str, low: int = 1) -> int:
    """A number of tokens from a cell's text or a JSON value.

    Raises:
        BadRow: no whole number, below `low`, or absurdly large.
    """
    text = value.strip() if isinstance(value, str) else value
    whole: int | None = None
    if isinstance(text, int) and not isinstance(text, bool):
        whole = text
    elif isinstance(text, str) and len(text) < 20:
        digits = text.removesuffix(".0").removeprefix("-")
        if digits.isascii() and digits.isdigit():
            whole = int(text.removesuffix(".0"))
    if whole is None or not low <= whole <= _MAX_TOKENS:
        raise BadRow(
            "workload_count", column=column, found=_shown(value), low=low, high=_MAX_TOKENS
        )
    return whole


def number_of(value: object, column: str) -> float:
    """A time from a cell's text or a JSON value, at least 0.

    Raises:
        BadRow: no number, negative, infinite, or not a number.
    """
    number = -1.0
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            number = float(value)
    if not 0 <= number < math.inf:
        raise BadRow("workload_time", column=column, found=_shown(value))
    return number


def _shown(value: object) -> str:
    text = value.strip() if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else text[:39] + "…"
