"""Recorder: stamps events with their step, number and phase, and keeps them.

It owns the running number and the store; it knows nothing of what the events mean. Memory is
bounded: past `memory_limit` events the older ones move to a temporary file, and reading them goes
through that file, so the cost of recording one event never grows with history.
"""

import pickle
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Concatenate, ParamSpec

from core.trace.events import Event, Phase, Reason

__all__ = ["EventStore", "Recorder"]

P = ParamSpec("P")


class EventStore:
    """An append-only sequence of events; the older part may live on disk."""

    def __init__(self, memory_limit: int = 500_000) -> None:
        self._limit = memory_limit
        self._recent: list[Event] = []
        self._spilled = 0
        self._file: IO[bytes] | None = None
        self._chunks: list[tuple[int, int]] = []  # (index of the first event, place in the file)

    def __len__(self) -> int:
        return self._spilled + len(self._recent)

    def __iter__(self) -> Iterator[Event]:
        return self.since(0)

    def since(self, index: int) -> Iterator[Event]:
        """Events from running number `index` on; events appended meanwhile are not seen."""
        end = len(self)
        for first, place in self._chunks:
            chunk = self._read(place)
            if first + len(chunk) > index:
                yield from chunk[max(0, index - first) :]
        start = max(0, index - self._spilled)
        yield from self._recent[start : end - self._spilled]

    def append(self, event: Event) -> None:
        """Adds one event; amortised O(1)."""
        self._recent.append(event)
        if len(self._recent) >= self._limit:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            # Unnamed, so that the operating system drops it with the process.
            self._file = tempfile.TemporaryFile(prefix="glassblock-trace-")  # noqa: SIM115
        half = len(self._recent) // 2 or 1
        place = self._file.seek(0, 2)
        pickle.dump(self._recent[:half], self._file, protocol=5)
        self._chunks.append((self._spilled, place))
        self._spilled += half
        del self._recent[:half]

    def _read(self, place: int) -> list[Event]:
        assert self._file is not None
        self._file.seek(place)
        chunk: list[Event] = pickle.load(self._file)
        return chunk


class Recorder:
    """Where the engine's parts report what they did.

    Attributes:
        step: set by the engine at the start of a step; 0 before the first.
        phase: set by whoever begins a part of the step.
    """

    __slots__ = ("_append", "events", "phase", "step")

    def __init__(self, memory_limit: int = 500_000) -> None:
        self.events = EventStore(memory_limit)
        self._append = self.events.append
        self.step = 0
        self.phase: Phase = "check"

    def emit(
        self,
        kind: Callable[Concatenate[int, int, Phase, str, Reason, P], Event],
        at: str,
        reason: Reason,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Records one event of type `kind`; `args` are its own fields in order."""
        self._append(kind(self.step, len(self.events), self.phase, at, reason, *args, **kwargs))
