"""Who is first in line, and who has to go: the two orders of a scheduling policy.

"fcfs": first come, first served; the victim is the request that runs shortest. "priority": the
smallest (priority, arrival) first; the victim is the largest. It knows requests, not blocks.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from core.config import Policy
from core.request import Request

__all__ = ["WaitingQueue", "choose_victim", "make_waiting_queue"]


class WaitingQueue(Protocol):
    """Requests that wait for admission, the next one first."""

    def __iter__(self) -> Iterator[Request]: ...
    def __len__(self) -> int: ...

    def add(self, request: Request) -> None:
        """A new arrival joins."""

    def put_back(self, request: Request) -> None:
        """A preempted request returns."""

    def first(self) -> Request:
        """The next request; it stays."""

    def pop(self) -> Request:
        """Takes the next request."""

    def remove(self, request: Request) -> None:
        """Takes a request out of the middle."""


def make_waiting_queue(policy: Policy) -> WaitingQueue:
    """An empty queue of the policy."""
    return _Fcfs() if policy == "fcfs" else _ByPriority()


def choose_victim(policy: Policy, running: Sequence[Request]) -> Request:
    """The running request that gives up its memory next."""
    return running[-1] if policy == "fcfs" else max(running, key=_rank)


def _rank(request: Request) -> tuple[int, float]:
    return request.priority, request.arrival


class _Fcfs:
    def __init__(self) -> None:
        self._line: deque[Request] = deque()

    def __iter__(self) -> Iterator[Request]:
        return iter(self._line)

    def __len__(self) -> int:
        return len(self._line)

    def add(self, request: Request) -> None:
        self._line.append(request)

    def put_back(self, request: Request) -> None:
        self._line.appendleft(request)

    def first(self) -> Request:
        return self._line[0]

    def pop(self) -> Request:
        return self._line.popleft()

    def remove(self, request: Request) -> None:
        self._line.remove(request)


class _ByPriority:
    """Kept sorted; equal ranks keep the order in which they came."""

    def __init__(self) -> None:
        self._line: list[Request] = []

    def __iter__(self) -> Iterator[Request]:
        return iter(self._line)

    def __len__(self) -> int:
        return len(self._line)

    def add(self, request: Request) -> None:
        self._line.insert(bisect_right(self._line, _rank(request), key=_rank), request)

    put_back = add

    def first(self) -> Request:
        return self._line[0]

    def pop(self) -> Request:
        return self._line.pop(0)

    def remove(self, request: Request) -> None:
        self._line.remove(request)
