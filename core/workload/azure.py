"""Azure's public inference traces: CSV with `TIMESTAMP,ContextTokens,GeneratedTokens`.

A timestamp is a date and a time with up to seven digits of fraction; digits past the microsecond
are dropped. The later traces name their time zone, the first does not; only differences count.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import IO

from core.workload.reading import BadRow, Entry, count_of, csv_rows, parsed
from core.workload.requests import WorkloadRequest

__all__ = ["COLUMNS", "read"]

COLUMNS: dict[str, tuple[str, ...]] = {
    "time": ("timestamp",),
    "prompt": ("contexttokens",),
    "output": ("generatedtokens",),
}


def read(file: IO[str]) -> Iterator[Entry]:
    """The requests of a trace, each with its line."""
    return parsed(csv_rows(file, COLUMNS), _request)


def _request(row: dict[str, str]) -> WorkloadRequest:
    return WorkloadRequest(
        arrival=_seconds(row["time"].strip()),
        prompt_tokens=count_of(row["prompt"], "ContextTokens"),
        output_tokens=count_of(row["output"], "GeneratedTokens"),
    )


def _seconds(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRow("workload_date", column="TIMESTAMP", found=text[:40]) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
