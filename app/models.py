"""The model for live runs: loaded once, in the background, shared by every visitor.

It owns one daemon thread and the state that the pill shows. It never imports torch in the caller's
thread, so a page is painted before, during and after the load alike.
"""

import gc
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from app.serve import MODEL_VARIABLE
from core.config import EngineConfig
from core.engine import Engine
from core.errors import GlassblockError, ModelError

__all__ = ["Backend", "ModelHolder", "ModelStatus", "install", "load_real", "shared"]

Tell = Callable[[str], None]


class Backend(Protocol):
    """What a live run needs of a model."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the trace's header says of it: name, dtype, device, processor."""

    def block_bytes(self, config: EngineConfig) -> int:
        """Bytes of one block over all layers."""

    def build(self, config: EngineConfig, title: Mapping[str, str], first_step: int = 0) -> Engine:
        """An engine with its own pool, whose steps count on from `first_step`."""

    def build_watched(self, config: EngineConfig, first_step: int, on_logits: Any) -> Engine:
        """The same, with a tap on its logits (`core.exec.runner.OnLogits`)."""


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """Where the load stands; `stage` is what the loader reported last."""

    state: Literal["idle", "loading", "ready", "failed"]
    stage: str = ""
    fault: GlassblockError | None = None


class ModelHolder:
    """One model and the thread that loads it.

    Args:
        load: makes the backend; runs in the thread, told a function to report its stage to.
    """

    def __init__(self, load: Callable[[Tell], Backend]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._status = ModelStatus("idle")
        self._backend: Backend | None = None

    @property
    def status(self) -> ModelStatus:
        """Where the load stands."""
        return self._status

    @property
    def backend(self) -> Backend | None:
        """The model, once it is ready."""
        return self._backend

    def start(self, delay: float = 0.0) -> None:
        """Begins to load, `delay` seconds from now; later calls do nothing."""
        with self._lock:
            if self._thread is not None:
                return
            self._status = ModelStatus("loading", "wait")
            self._thread = threading.Thread(
                target=self._work, args=(delay,), name="glassblock-model", daemon=True
            )
            self._thread.start()

    def wait(self, timeout: float | None = None) -> ModelStatus:
        """The status once the load is over."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._status

    def _work(self, delay: float) -> None:
        # The browser asks for the page's files first: importing torch would hold the interpreter.
        threading.Event().wait(delay)
        try:
            self._backend = self._load(self._tell)
        except GlassblockError as fault:
            self._status = ModelStatus("failed", fault=fault)
        except Exception as fault:
            line = (str(fault) or type(fault).__name__).partition("\n")[0][:200]
            self._status = ModelStatus("failed", fault=ModelError("model_load", detail=line))
        else:
            # Streamlit collects after every rerun; a loaded torch made that several times slower.
            gc.collect()
            gc.freeze()
            self._status = ModelStatus("ready")

    def _tell(self, stage: str) -> None:
        self._status = ModelStatus("loading", stage)


def load_real(tell: Tell) -> Backend:
    """The model that the environment names, else the embedded default.

    Raises:
        ModelError: it can't be found, read or run faithfully.
    """
    tell("import")
    from app.backend import RealBackend

    return RealBackend.load(os.environ.get(MODEL_VARIABLE) or None, tell)


_shared = ModelHolder(load_real)


def shared() -> ModelHolder:
    """The holder of this process."""
    return _shared


def install(holder: ModelHolder) -> None:
    """Puts another holder in place: a test's, with a model that isn't there."""
    global _shared
    _shared = holder
