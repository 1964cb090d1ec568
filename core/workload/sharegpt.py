"""ShareGPT's conversations: a JSON array of `{"conversations": [{"from": …, "value": text}]}`.

The first turn is the prompt, the second the answer, as in vLLM's benchmark; a conversation with
fewer turns, or with an empty one, is left out, and counted. Lengths depend on who counts tokens,
so a counter is given. The file says no times: all requests arrive at once.
"""

import json
from collections.abc import Callable, Iterator
from typing import IO, Any

from core.workload.reading import BadRow, Entry, parsed
from core.workload.requests import WorkloadRequest

__all__ = ["estimate_tokens", "read"]


def estimate_tokens(text: str) -> int:
    """Tokens of a text by a rule of thumb: four characters each, at least one.

    >>> estimate_tokens("nine char")
    3
    """
    return -(-len(text) // 4)


def read(file: IO[str], count: Callable[[str], int]) -> Iterator[Entry]:
    """The requests of a file, each with the line where its conversation starts."""
    yield from parsed(_elements(file.read()), lambda element: _request(element, count))


def _elements(text: str) -> Iterator[tuple[int, Any]]:
    """The elements of a JSON array, each with its line.

    Nothing can be read behind a broken element, so it is the last.
    """
    decoder = json.JSONDecoder()
    place, line, counted = _past_blanks(text, 0), 1, 0
    expected, closing = "[", ""
    while True:
        line, counted = line + text.count("\n", counted, place), place
        here = text[place : place + 1]
        if here == closing and closing:
            return
        if expected:
            if here != expected:
                yield line, BadRow("workload_array", found=here or "the file's end")
                return
            place = _past_blanks(text, place + 1)
            if expected == "[" and text[place : place + 1] == "]":
                return
            expected = closing = ""
            continue
        try:
            element, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            detail = error.msg if isinstance(error, json.JSONDecodeError) else error
            yield line, BadRow("workload_broken", detail=detail)
            return
        yield line, element
        place, expected, closing = _past_blanks(text, place), ",", "]"


def _past_blanks(text: str, place: int) -> int:
    while text[place : place + 1] in (" ", "\n", "\r", "\t"):
        place += 1
    return place


def _request(element: Any, count: Callable[[str], int]) -> WorkloadRequest | None:
    turns = element.get("conversations") if isinstance(element, dict) else None
    if not isinstance(turns, list):
        raise BadRow("workload_key", key="conversations")
    if len(turns) < 2:
        return None
    texts = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
    if not all(isinstance(text, str) for text in texts):
        raise BadRow("workload_key", key="value")
    prompt_tokens, output_tokens = (count(str(text)) for text in texts)
    if prompt_tokens < 1 or output_tokens < 1:
        return None
    return WorkloadRequest(0.0, prompt_tokens, output_tokens)
