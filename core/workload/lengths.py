"""A plain table of lengths: CSV with `prompt,output` and, if known, `arrival` in seconds.

Without an arrival column all requests arrive at once.
"""

from collections.abc import Iterator
from typing import IO

from core.workload.reading import Entry, count_of, csv_rows, number_of, parsed
from core.workload.requests import WorkloadRequest

__all__ = ["COLUMNS", "read"]

COLUMNS: dict[str, tuple[str, ...]] = {
    "prompt": (
        "prompt",
        "prompt_tokens",
        "prompt_len",
        "prompt_length",
        "input",
        "input_tokens",
        "input_len",
        "input_length",
    ),
    "output": (
        "output",
        "output_tokens",
        "output_len",
        "output_length",
        "completion_tokens",
        "generated_tokens",
    ),
    "arrival": ("arrival", "arrival_time", "arrival_s", "time", "seconds"),
}


def read(file: IO[str]) -> Iterator[Entry]:
    """The requests of a table, each with its line."""
    return parsed(csv_rows(file, COLUMNS, frozenset({"arrival"})), _request)


def _request(row: dict[str, str]) -> WorkloadRequest:
    return WorkloadRequest(
        arrival=number_of(row["arrival"], "arrival") if "arrival" in row else 0.0,
        prompt_tokens=count_of(row["prompt"], "prompt"),
        output_tokens=count_of(row["output"], "output"),
    )
