"""Recorder: stamps events with their step, number and phase, and keeps them.

It owns the running number and the store; it knows nothing of what the events mean. Memory is
bounded: past `memory_limit` events the older ones move to a temporary file, and reading them goes
through that file, so the cost of recording one event never grows with history. One thread may
record while others read: a lock guards the border between file and memory.
"""

import pickle
import tempfile
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import IO, Concatenate, ParamSpec

from core.trace.events import Event, Phase, Reason

__all__ = ["EventStore", "Recorder"]

P = ParamSpec("P")


class EventStore:
    """An append-only sequence of events; the older part may live on disk."""

    def __init__(self, memory_limit: int = 500_000) -> None:
        self._limit = memory_limit
        self._length = 0
        self._lock = threading.Lock()
        self._recent: list[Event] = []
        self._spilled = 0
        self._file: IO[bytes] | None = None
        self._firsts: list[int] = []  # for each chunk of the file its first event's running number
        self._places: list[int] = []  # and where it begins

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Event]:
        return self.since(0)

    def since(self, index: int) -> Iterator[Event]:
        """Events from running number `index` on; events appended meanwhile are not seen."""
        end = len(self)
        while index < end:
            events = self._run_from(index)
            yield from events[: end - index]
            index += len(events)

    def append(self, event: Event) -> None:
        """Adds one event; amortised O(1)."""
        self._recent.append(event)
        self._length += 1
        if len(self._recent) >= self._limit:
            self._spill()

    def _spill(self) -> None:
        with self._lock:
            if self._file is None:
                # Unnamed, so that the operating system drops it with the process.
                self._file = tempfile.TemporaryFile(prefix="glassblock-trace-")  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            half = len(self._recent) // 2 or 1
            place = self._file.seek(0, 2)
            pickle.dump(self._recent[:half], self._file, protocol=5)
            self._firsts.append(self._spilled)
            self._places.append(place)
            self._spilled += half
            del self._recent[:half]

    def _run_from(self, index: int) -> list[Event]:
        """The events from `index` to the end of its chunk, or of those in memory."""
        with self._lock:
            if index >= self._spilled:
                return self._recent[index - self._spilled :]
            chunk = bisect_right(self._firsts, index) - 1
            assert self._file is not None
            self._file.seek(self._places[chunk])
            events: list[Event] = pickle.load(self._file)
            return events[index - self._firsts[chunk] :]


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
