"""Mooncake's traces: JSON Lines with `timestamp` (ms), two lengths, and `hash_ids`.

A hash id names 512 tokens of the prompt together with everything before them, so equal ids mean
equal prefixes; the last one of a prompt may stand for fewer tokens.
"""

from collections.abc import Iterator
from typing import IO, Any

from core.workload.reading import BadRow, Entry, count_of, json_lines, number_of, parsed
from core.workload.requests import WorkloadRequest

__all__ = ["KEYS", "PREFIX_UNIT", "read"]

KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
PREFIX_UNIT = 512


def read(file: IO[str]) -> Iterator[Entry]:
    """The requests of a trace, each with its line."""
    return parsed(json_lines(file), _request)


def _request(row: dict[str, Any]) -> WorkloadRequest:
    for key in KEYS:
        if key not in row:
            raise BadRow("workload_key", key=key)
    prompt_tokens = count_of(row["input_length"], "input_length")
    names = row["hash_ids"]
    if not isinstance(names, list) or not all(type(name) is int for name in names):
        raise BadRow("workload_names", key="hash_ids")
    expected = -(-prompt_tokens // PREFIX_UNIT)
    if len(names) != expected:
        raise BadRow(
            "workload_name_count", key="hash_ids", found=len(names), expected=expected,
            tokens=prompt_tokens, unit=PREFIX_UNIT,
        )  # fmt: skip
    return WorkloadRequest(
        arrival=number_of(row["timestamp"], "timestamp") / 1000,
        prompt_tokens=prompt_tokens,
        output_tokens=count_of(row["output_length"], "output_length"),
        prefix=tuple(names),
    )
