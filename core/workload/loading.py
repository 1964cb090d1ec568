"""Loading a workload file of any known format, which its content tells.

It knows the formats' names and marks; what a row means is the format's own business.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

from core.checks import check_number
from core.errors import WorkloadError
from core.workload import azure, burstgpt, lengths, mooncake, sharegpt
from core.workload.reading import Collected, Entry, collect, head_of, open_text
from core.workload.requests import Workload

__all__ = ["FORMATS", "detect_format", "load_workload"]

FORMATS = ("azure", "mooncake", "burstgpt", "sharegpt", "lengths")
_MAX_REQUESTS = 1 << 30
_TABLES = {"azure": azure.COLUMNS, "burstgpt": burstgpt.COLUMNS, "lengths": lengths.COLUMNS}
_OPTIONAL = {"arrival"}


def load_workload(
    path: str | Path,
    format: str = "auto",
    *,
    skip_bad_rows: bool = False,
    limit: int | None = None,
    count: Callable[[str], int] | None = None,
    label: str | None = None,
) -> Workload:
    """The requests of a workload file.

    Args:
        path: the file.
        format: one of `FORMATS`, or "auto" to tell it from the content.
        skip_bad_rows: leave bad rows out and count them, instead of refusing the file.
        limit: take the first so many requests.
        count: tokens of a text, for files that hold texts; without it lengths are estimated.
        label: how messages name the file, if not by its path (an uploaded file's own name).

    Raises:
        WorkloadError: the file can't be read, has an unknown format, or a bad row; the message
            names the line and what was expected.
        ConfigError: `limit` is no positive number.
    """
    if limit is not None:
        check_number("limit", limit, 1, _MAX_REQUESTS)
    name = label or str(path)
    if format not in ("auto", *FORMATS):
        raise WorkloadError("workload_format", format=format, formats=", ".join(FORMATS))
    with open_text(Path(path), name) as file:
        kind = detect_format(file, name) if format == "auto" else format
        entries = _reader(kind, count)(file)
        found = collect(entries, name, skip_bad_rows=skip_bad_rows, limit=limit)
    return Workload(
        name=Path(name).stem,
        format=kind,
        requests=found.requests,
        prefix_unit=mooncake.PREFIX_UNIT if kind == "mooncake" else 0,
        skipped=found.left_out + found.bad,
        source=Path(name).name,
        notes=_notes(kind, found, estimated=count is None),
    )


def detect_format(file: IO[str], name: str) -> str:
    """The format that the first line shows; the file is rewound.

    Raises:
        WorkloadError: none of them.
    """
    try:
        head = head_of(file)
    except UnicodeDecodeError as error:
        raise WorkloadError("workload_binary", path=name) from error
    if head.startswith("["):
        return "sharegpt"
    if head.startswith("{") and any(f'"{key}"' in head for key in mooncake.KEYS):
        return "mooncake"
    cells = {cell.strip().strip('"').lower() for cell in head.split(",")}
    for format, columns in _TABLES.items():
        wanted = [titles for name, titles in columns.items() if name not in _OPTIONAL]
        if all(cells & set(titles) for titles in wanted):
            return format
    raise WorkloadError("workload_unknown", path=name, found=head[:60], formats=", ".join(FORMATS))


def _reader(
    format: str, count: Callable[[str], int] | None
) -> Callable[[IO[str]], Iterator[Entry]]:
    if format == "sharegpt":
        return partial(sharegpt.read, count=count or sharegpt.estimate_tokens)
    return {
        "azure": azure.read,
        "mooncake": mooncake.read,
        "burstgpt": burstgpt.read,
        "lengths": lengths.read,
    }[format]


def _notes(format: str, found: Collected, *, estimated: bool) -> tuple[tuple[str, int], ...]:
    notes = []
    if format == "sharegpt" and estimated:
        notes.append(("estimated", len(found.requests)))
    if len(found.requests) > 1 and not any(request.arrival for request in found.requests):
        notes.append(("at_once", len(found.requests)))
    if found.left_out:
        notes.append(("failed" if format == "burstgpt" else "short", found.left_out))
    if found.bad:
        notes.append(("bad", found.bad))
    return tuple(notes)
