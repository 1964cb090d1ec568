"""One piece of work in a thread of its own, with its share done, a wish to stop, and its result.

It owns the thread and the cap of the process. It knows nothing of what is worked on: that is a
function that takes "tell me the share" and returns something. Telling is also where a stopped task
ends. It does not know Streamlit.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, Literal, TypeVar

from core.errors import GlassblockError, LimitError

__all__ = ["Task", "start"]

_log = logging.getLogger("glassblock")
_CAP = 2
_BREATH = 0.004  # seconds that a report leaves to the pages of the same process
_UNSEEN = 180.0  # seconds without a look after which a task stops
T = TypeVar("T")
State = Literal["running", "done", "stopped", "failed"]


class _Stopped(Exception):
    """Ends the work from inside."""


class Task(Generic[T]):
    """Work under way or over."""

    def __init__(self, work: Callable[[Callable[[float], None]], T]) -> None:
        self.state: State = "running"
        self.share = 0.0
        self.result: T | None = None
        self.fault: GlassblockError | None = None
        self._work = work
        self._cancel = threading.Event()
        self._seen = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="glassblock-task", daemon=True)

    def start(self) -> None:
        """Sets to work."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the work when it next tells its share."""
        self._cancel.set()

    def look(self) -> None:
        """Somebody still wants it."""
        self._seen = time.monotonic()

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the end."""
        self._thread.join(timeout)

    @property
    def is_running(self) -> bool:
        """Whether it works."""
        return self.state == "running"

    def _tell(self, share: float) -> None:
        self.share = min(1.0, max(0.0, share))
        if self._cancel.is_set() or time.monotonic() - self._seen > _UNSEEN:
            raise _Stopped
        time.sleep(_BREATH)

    def _run(self) -> None:
        state: State = "failed"
        try:
            self.result = self._work(self._tell)
            state = "done"
        except _Stopped:
            state = "stopped"
        except GlassblockError as fault:
            self.fault = fault
        except Exception as fault:
            _log.exception("a task failed")
            detail = (str(fault) or type(fault).__name__).partition("\n")[0][:200]
            self.fault = GlassblockError("task_failed", detail=detail)
        finally:
            self.state = state
            with _lock:
                _alive.discard(self)


_lock = threading.Lock()
_alive: set[Task] = set()  # type: ignore[type-arg]


def start(work: Callable[[Callable[[float], None]], T]) -> Task[T]:
    """Starts a task.

    Raises:
        LimitError: as many are at work as this process takes.
    """
    with _lock:
        if len(_alive) >= _CAP:
            raise LimitError("task_busy", limit=_CAP)
        task = Task(work)
        _alive.add(task)
    task.start()
    return task
