"""Hardware: how much memory a device has, how fast it moves bytes and does arithmetic.

It owns one table. Bandwidth and arithmetic are peaks from the vendors' data sheets (dense, without
sparsity); capacity is what the driver reports, which is less than the name says. It does not know
models or how much of a peak a program reaches.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from core.errors import ConfigError

__all__ = ["GIB", "HARDWARE", "Hardware", "find_hardware"]

GIB = 1 << 30
_SHEET = "vendor data sheet"


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device.

    Attributes:
        capacity: bytes that the driver reports.
        bandwidth: bytes a second, peak.
        flops: operations a second by data type, peak; a type that is not there is not supported.
        link: bytes a second to host memory, one way, peak.
        source: where bandwidth and arithmetic come from.
    """

    name: str
    title: str
    capacity: int
    bandwidth: float
    flops: Mapping[str, float]
    link: float
    source: str = _SHEET

    def peak(self, dtype: str) -> float:
        """Operations a second in `dtype`.

        Raises:
            ConfigError: the device has no such arithmetic.
        """
        if dtype not in self.flops:
            known = ", ".join(self.flops)
            raise ConfigError("hardware_dtype", name=self.name, dtype=dtype, known=known)
        return self.flops[dtype]


def _device(
    name: str,
    title: str,
    gib: float,
    gigabytes: float,
    teraflops: tuple[float, float, float, float],
    link: float,
    source: str = _SHEET,
) -> Hardware:
    """One row; `teraflops` of float16, bfloat16, float32 and fp8, 0 for what is not there."""
    names = ("float16", "bfloat16", "float32", "fp8")
    flops = {dtype: tera * 1e12 for dtype, tera in zip(names, teraflops, strict=True) if tera}
    return Hardware(name, title, int(gib * GIB), gigabytes * 1e9, flops, link * 1e9, source)


# Link: PCIe 3.0 x16 is 16 GB/s, 4.0 is 32, 5.0 is 64.
_ROWS = (
    _device("a100-40gb", "NVIDIA A100 40 GB", 39.38, 1555, (312, 312, 19.5, 0), 32),
    _device("a100-80gb", "NVIDIA A100 80 GB", 79.25, 2039, (312, 312, 19.5, 0), 32),
    _device("h100-80gb", "NVIDIA H100 SXM 80 GB", 79.19, 3350, (989, 989, 67, 1979), 64),
    _device("h200", "NVIDIA H200 SXM", 139.8, 4800, (989, 989, 67, 1979), 64),
    _device("mi300x", "AMD MI300X", 191.45, 5300, (1307, 1307, 163.4, 2615), 64),
    _device("l40s", "NVIDIA L40S", 44.55, 864, (362, 362, 91.6, 733), 32),
    _device("a40", "NVIDIA A40", 44.55, 696, (149.7, 149.7, 37.4, 0), 32),
    _device("a10g", "NVIDIA A10G", 21.99, 600, (70, 70, 35, 0), 32),
    _device("l4", "NVIDIA L4", 22.06, 300, (121, 121, 30.3, 242), 32),
    _device("t4", "NVIDIA T4", 14.56, 320, (65, 0, 8.1, 0), 16),
    _device("v100-32gb", "NVIDIA V100 SXM2 32 GB", 31.74, 900, (125, 0, 15.7, 0), 16),
    _device("rtx-3090", "NVIDIA GeForce RTX 3090", 23.5, 936, (71, 71, 35.6, 0), 32),
    _device("rtx-4090", "NVIDIA GeForce RTX 4090", 23.5, 1008, (165.2, 165.2, 82.6, 330.3), 32),
    # Two channels of DDR5-4800, 8 bytes each; 8 cores x 4 GHz x 32 operations (two 8-wide FMAs).
    _device(
        "cpu", "desktop CPU, 8 cores, DDR5-4800", 30, 76.8, (0, 1.02, 1.02, 0), 76.8,
        "computed from 2 memory channels and 8 cores with AVX2",
    ),
)  # fmt: skip
HARDWARE: Mapping[str, Hardware] = {device.name: device for device in _ROWS}


def find_hardware(name: str) -> Hardware:
    """The device of that name, in any case.

    Raises:
        ConfigError: there is none; the message lists them.
    """
    found = HARDWARE.get(name.lower())
    if found is None:
        raise ConfigError("unknown_hardware", name=name, known=", ".join(HARDWARE))
    return found
