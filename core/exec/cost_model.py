"""CostModel: how long a step would take, by the roofline of a device. Every time is modelled.

A step takes the longer of its arithmetic and its memory traffic, each at a fixed share of the
device's peak, and a fixed overhead. It owns these assumptions and can list them. It knows loads
and shapes; it does not know requests, blocks or queues, and it loads no torch.
"""

from dataclasses import dataclass, field
from typing import Any

from core.capacity.hardware import Hardware
from core.capacity.shapes import BYTES, ModelShape
from core.checks import check_number
from core.config import KVCacheDtype

__all__ = ["Assumption", "CostModel", "StepLoad"]


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one step has to do, summed over its sequences.

    Attributes:
        tokens: positions computed.
        context: tokens whose K and V are read: every sequence's stored ones, once.
        pairs: (query, key) pairs of attention.
        sampled: positions whose logits are computed.
        moved: tokens copied within device memory (copy-on-write).
        swapped: tokens moved over the link to or from host memory.
    """

    sequences: int
    tokens: int
    context: int
    pairs: int
    sampled: int
    moved: int = 0
    swapped: int = 0


@dataclass(frozen=True, slots=True)
class Assumption:
    """One thing that a simulation takes for granted: a code of the catalogue and its values."""

    code: str
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of a step on `gpus` devices that share the work evenly and talk for nothing.

    Attributes:
        dtype: of the weights and the arithmetic.
        kv_cache_dtype: as in `EngineConfig`; reading fp8 is taken to cost no arithmetic.
        compute_efficiency, memory_efficiency: shares of the peaks that a step reaches. Assumed.
        step_overhead: seconds a step, whatever it does. Assumed.
        sequence_overhead: seconds a sequence and step: 900 us for 64 in vLLM's scheduler.

    Raises:
        ConfigError: a value out of range, or a data type that the hardware can't compute.
    """

    hardware: Hardware
    shape: ModelShape
    gpus: int = 1
    dtype: str = "float16"
    kv_cache_dtype: KVCacheDtype = "auto"
    compute_efficiency: float = 0.6
    memory_efficiency: float = 0.8
    step_overhead: float = 1e-3
    sequence_overhead: float = 14e-6
    _per: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_number("gpus", self.gpus, 1, 1024)
        for name in ("compute_efficiency", "memory_efficiency"):
            check_number(name, getattr(self, name), 0.01, 1.0)
        for name in ("step_overhead", "sequence_overhead"):
            check_number(name, getattr(self, name), 0.0, 10.0)
        object.__setattr__(self, "_per", self._seconds_per())

    @property
    def kv_dtype(self) -> str:
        """What K and V are stored in."""
        return self.dtype if self.kv_cache_dtype == "auto" else self.kv_cache_dtype

    @property
    def slot_bytes(self) -> int:
        """Bytes of one token's K and V over all layers."""
        return self.shape.slot_bytes(self.kv_dtype)

    def _seconds_per(self) -> tuple[float, ...]:
        """Seconds by a token, a pair, a logit row; by the weights, a slot read, a slot swapped."""
        shape, gpus = self.shape, self.gpus
        flops = self.hardware.peak(self.dtype) * self.compute_efficiency * gpus
        bandwidth = self.hardware.bandwidth * self.memory_efficiency * gpus
        slot = self.slot_bytes
        weights = (shape.layer_params + shape.head_params) * BYTES[self.dtype]
        return (
            2 * shape.layer_params / flops,
            4 * shape.layers * shape.heads * shape.head_dim / flops,
            2 * shape.head_params / flops,
            weights / bandwidth,
            slot / bandwidth,
            slot / (self.hardware.link * self.memory_efficiency * gpus),
        )

    def seconds(self, load: StepLoad) -> float:
        """Modelled seconds of a step."""
        token, pair, row, weights, slot, link = self._per
        swap = load.swapped * link
        if not load.tokens:
            return self.step_overhead + swap
        compute = load.tokens * token + load.pairs * pair + load.sampled * row
        # K and V of new tokens are written, copies are read and written.
        memory = weights + (load.context + load.tokens + 2 * load.moved) * slot
        overhead = self.step_overhead + load.sequences * self.sequence_overhead
        return max(compute, memory) + swap + overhead

    def assumptions(self) -> tuple[Assumption, ...]:
        """What the modelled times rest on."""
        hardware, shape = self.hardware, self.shape
        peaks = {
            "hardware": hardware.title,
            "gpus": self.gpus,
            "bandwidth": round(hardware.bandwidth / 1e9, 1),
            "flops": round(hardware.peak(self.dtype) / 1e12, 2),
            "dtype": self.dtype,
            "source": hardware.source,
        }
        model = {
            "model": shape.title,
            "params": round(shape.params / 1e9, 2),
            "slot_bytes": self.slot_bytes,
        }
        shares = {
            "compute": round(100 * self.compute_efficiency),
            "memory": round(100 * self.memory_efficiency),
            "step_us": round(self.step_overhead * 1e6),
            "sequence_us": round(self.sequence_overhead * 1e6, 1),
        }
        return (
            Assumption("roofline", {}),
            Assumption("hardware", peaks),
            Assumption("model", model),
            Assumption("efficiency", shares),
        )
