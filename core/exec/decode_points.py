"""Records of how long decode attention takes: what was measured, and what follows from it.

It owns the cases and the values of a record (`core.exec.decode_speed` makes them). Bytes and
operations are derived from the shape, times are measured. It loads no torch, so that a page can
show a record at once.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from core.errors import TraceError

__all__ = [
    "CASES",
    "HEADS",
    "HEAD_DIM",
    "KV_HEADS",
    "MODEL",
    "Case",
    "SpeedPoint",
    "SpeedRun",
    "Sweep",
    "Time",
]

Sweep = Literal["block_size", "batch", "context", "group"]
# One layer's attention of SmolLM2-135M.
MODEL, HEADS, KV_HEADS, HEAD_DIM = "SmolLM2-135M", 9, 3, 64


@dataclass(frozen=True, slots=True)
class Case:
    """One step's decode attention in one layer: equal contexts over shuffled blocks."""

    sweep: Sweep
    block_size: int = 16
    num_seqs: int = 8
    context: int = 1024
    num_kv_heads: int = KV_HEADS


CASES: tuple[Case, ...] = (
    *(Case("block_size", block_size=size) for size in (1, 2, 4, 8, 16, 32, 64, 128, 256)),
    *(Case("batch", num_seqs=count) for count in (1, 2, 4, 8, 16, 32)),
    *(Case("context", context=tokens) for tokens in (128, 256, 512, 1024, 2048, 4096)),
    *(Case("group", context=4096, num_kv_heads=heads) for heads in (9, 3, 1)),
)


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds of the turns: the fastest, the median, the upper quartile.

    The fastest is what the machine can do: whatever else runs there can only add.
    """

    fastest: float
    median: float
    high: float

    @classmethod
    def of(cls, turns: Sequence[float]) -> "Time":
        """The turns in three numbers.

        >>> Time.of([3.0, 1.0, 2.0])
        Time(fastest=1.0, median=2.0, high=2.5)
        """
        if len(turns) == 1:
            return cls(turns[0], turns[0], turns[0])
        _, median, high = statistics.quantiles(turns, n=4, method="inclusive")
        return cls(min(turns), median, high)


@dataclass(frozen=True, slots=True)
class SpeedPoint:
    """A measured case; its bytes and operations are derived from the shape."""

    case: Case
    time: Time
    num_heads: int
    head_dim: int
    item_bytes: int

    @property
    def bytes_read(self) -> int:
        """K and V of all contexts, each read once."""
        tokens = self.case.num_seqs * self.case.context
        return 2 * tokens * self.case.num_kv_heads * self.head_dim * self.item_bytes

    @property
    def operations(self) -> int:
        """Multiplications and additions of query x K and of weights x V."""
        return 4 * self.case.num_seqs * self.case.context * self.num_heads * self.head_dim

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.operations / self.bytes_read


@dataclass(frozen=True, slots=True)
class SpeedRun:
    """What was measured, on what.

    Attributes:
        copy: seconds of one copy of `copied` bytes, which reads and writes that many.
        matmul: seconds of one product of square matrices of `side`.
        backend: whose attention it is, a name of `kernels.dispatch`.
    """

    points: tuple[SpeedPoint, ...]
    copy: Time
    copied: int
    matmul: Time
    side: int
    dtype: str
    processor: str
    threads: int
    torch: str
    repeats: int
    model: str = MODEL
    backend: str = "torch"

    @property
    def copy_rate(self) -> float:
        """Bytes a second, read and written ones counted."""
        return 2 * self.copied / self.copy.fastest

    @property
    def matmul_rate(self) -> float:
        """Operations a second."""
        return float(2 * self.side**3 / self.matmul.fastest)

    def of(self, sweep: Sweep) -> list[SpeedPoint]:
        """The points of one sweep."""
        return [point for point in self.points if point.case.sweep == sweep]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Any) -> "SpeedRun":
        """The run that `to_json` wrote.

        Raises:
            TraceError: the values are something else.
        """
        try:
            points = tuple(
                SpeedPoint(**{**p, "case": Case(**p["case"]), "time": Time(**p["time"])})
                for p in plain["points"]
            )
            times = {name: Time(**plain[name]) for name in ("copy", "matmul")}
            return cls(**{**plain, **times, "points": points})
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError("decode_speed", detail=str(error)) from error

    def dump(self) -> str:
        """As a file's text."""
        return json.dumps(self.to_json(), indent=1) + "\n"
