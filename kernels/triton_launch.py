"""What every launch needs to know of the machine; the only place that asks the driver.

It knows no kernel. Triton's interpreter stands in for a GPU when TRITON_INTERPRET=1 was set
before the kernels were loaded.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import Tensor

__all__ = [
    "architecture",
    "has_native_fp8",
    "interpreting",
    "needs_wide",
    "num_multiprocessors",
    "on_device",
    "power_of_two",
]


def power_of_two(value: int) -> int:
    """The smallest power of two that is at least `value`.

    >>> [power_of_two(n) for n in (1, 3, 80, 128)]
    [1, 4, 128, 128]
    """
    return 1 << max(0, value - 1).bit_length()


def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter, on any tensor, slowly."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def needs_wide(tensor: Tensor) -> bool:
    """Whether the kernel must compute in float32: the interpreter can't multiply bfloat16."""
    return interpreting() and tensor.dtype == torch.bfloat16


def on_device(tensor: Tensor) -> AbstractContextManager[object]:
    """Makes the tensor's GPU the current one: a launch goes to that."""
    if tensor.is_cuda and tensor.device.index != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return nullcontext()


@cache
def architecture(device: torch.device) -> str:
    """Such as "sm90" or "gfx942"; "interpreter" for anything but a GPU."""
    if device.type != "cuda":
        return "interpreter"
    if torch.version.hip:
        name: str = torch.cuda.get_device_properties(device).gcnArchName
        return name.partition(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm{major}{minor}"


@cache
def has_native_fp8(device: torch.device) -> bool:
    """Whether the GPU converts float8 e4m3 by itself (NVIDIA from sm_89 on)."""
    arch = architecture(device)
    return arch.startswith("sm") and int(arch[2:]) >= 89


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Of a GPU; 4 for the interpreter, so that small tests split contexts too."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
