"""The real model behind live runs.

Only the loading thread imports this module: what it imports loads torch.
"""

from collections.abc import Callable, Mapping
from typing import Any

from core.config import EngineConfig
from core.engine import Engine
from core.exec.build import build_engine, describe, num_threads, use_threads
from core.exec.model import LoadedModel, load_model
from core.exec.runner import OnLogits, block_bytes

__all__ = ["RealBackend"]


class RealBackend:
    """A loaded model, shared by all engines and never changed."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._threads = num_threads()
        self.facts: Mapping[str, Any] = describe(loaded)

    @classmethod
    def load(cls, name: str | None, tell: Callable[[str], None]) -> "RealBackend":
        """Finds and loads the model.

        Raises:
            ModelError: it can't be found, read or run faithfully.
        """
        return cls(load_model(name, progress=tell))

    def block_bytes(self, config: EngineConfig) -> int:
        """Bytes of one block over all layers."""
        return block_bytes(self._loaded.info, config)

    def build(self, config: EngineConfig, title: Mapping[str, str], first_step: int = 0) -> Engine:
        """An engine with its own pool, to be stepped in the calling thread."""
        return self.build_watched(config, first_step, None, title)

    def build_watched(
        self,
        config: EngineConfig,
        first_step: int,
        on_logits: OnLogits | None,
        title: Mapping[str, str] | None = None,
    ) -> Engine:
        """The same, with an eye on the logits."""
        use_threads(self._threads)  # the count belongs to a thread
        return build_engine(
            self._loaded, config, title=title, first_step=first_step, on_logits=on_logits
        )
