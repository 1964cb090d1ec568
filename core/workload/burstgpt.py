"""BurstGPT's traces: CSV with `Timestamp,Model,Request tokens,Response tokens,…`.

Later files add columns, which are passed over. A response of 0 tokens is a request that failed in
the recording: it is left out, and counted.
"""

from collections.abc import Iterator
from typing import IO

from core.workload.reading import Entry, count_of, csv_rows, number_of, parsed
from core.workload.requests import WorkloadRequest

__all__ = ["COLUMNS", "read"]

COLUMNS: dict[str, tuple[str, ...]] = {
    "time": ("timestamp",),
    "prompt": ("request tokens",),
    "output": ("response tokens",),
}


def read(file: IO[str]) -> Iterator[Entry]:
    """The requests of a trace, each with its line; None for a failed one."""
    return parsed(csv_rows(file, COLUMNS), _request)


def _request(row: dict[str, str]) -> WorkloadRequest | None:
    arrival = number_of(row["time"], "Timestamp")
    output_tokens = count_of(row["output"], "Response tokens", low=0)
    prompt_tokens = count_of(row["prompt"], "Request tokens", low=min(1, output_tokens))
    return WorkloadRequest(arrival, prompt_tokens, output_tokens) if output_tokens else None
