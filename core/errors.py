"""The exception tree.

    GlassblockError            a sentence for the user: what, where, how to fix
    ├── ConfigError            a setting that can't work
    ├── RequestError           a request that can't be accepted
    ├── ModelError             a model that can't be found, read or run faithfully
    ├── TraceError             a file that is no trace, or is damaged
    ├── WorkloadError          a scenario or workload file with a fault
    ├── LimitError             a cap on memory, sessions or size was met
    └── BenchError             a measurement that can't be made, or that came out wrong
    InvariantError             a broken promise of our own, with a dump of the state

A `GlassblockError` carries a code and values, so that the same fault reads well in any language.
"""

from core.text import sentence

__all__ = [
    "BenchError",
    "ConfigError",
    "GlassblockError",
    "InvariantError",
    "LimitError",
    "ModelError",
    "RequestError",
    "TraceError",
    "WorkloadError",
]


class GlassblockError(Exception):
    """A fault that the user can mend, named by a code of the `error` section of the catalogue."""

    def __init__(self, code: str, /, **values: object) -> None:
        self.code = code
        self.values = values
        super().__init__(self.sentence())

    def sentence(self, lang: str = "en") -> str:
        """The fault as one sentence in `lang`."""
        return sentence(f"error.{self.code}", lang, **self.values)


class ConfigError(GlassblockError, ValueError):
    """A setting that can't work."""


class RequestError(GlassblockError, ValueError):
    """A request that can't be accepted."""


class ModelError(GlassblockError):
    """A model that can't be found, read or run faithfully."""


class TraceError(GlassblockError, ValueError):
    """A file that is no trace, or is damaged."""


class WorkloadError(GlassblockError, ValueError):
    """A scenario or workload file with a fault."""


class LimitError(GlassblockError):
    """A cap on memory, sessions or size was met."""


class BenchError(GlassblockError):
    """A measurement that can't be made here, or whose tokens or numbers came out wrong."""


class InvariantError(RuntimeError):
    """A broken promise of our own; the message holds a dump of the state."""
