"""Numbers for the compiled CPU kernels: bfloat16 as its 16 bits, and powers of two.

numba knows no bfloat16, so such a tensor comes as the 16 bits of each number: the upper half of
the float32 that is meant. And it calls a library for each exp, which keeps the processor from
working on many numbers at once; `exp2` here is plain arithmetic instead. All else is float32.

`COMPILE` holds the options of every kernel: sums may be taken in any order, which is what lets the
processor add several products at once. NaN goes through, so that a wrong read shows.

numba looks at no other file when it decides whether kept code is old: after a change here, delete
the `.nbi` files beside this one, or the loops go on with the old arithmetic.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

__all__ = ["COMPILE", "LOG2_E", "exp2", "load", "store", "tanh"]

COMPILE: dict[str, Any] = {
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
    "error_model": "numpy",
    "nogil": True,  # the page goes on while a step runs
    "cache": True,
}
LOG2_E = np.float32(1.4426950408889634)
_HALF = np.float32(0.5)
_ONE = np.float32(1.0)
_TWO = np.float32(2.0)
_LOWEST = np.float32(-126.0)
_HIGHEST = np.float32(126.0)
# ln(2)^k / k!: the series of 2^f. With |f| <= 1/2 what is left out is below 2e-7 of the result.
_C1 = np.float32(6.9314718e-1)
_C2 = np.float32(2.4022651e-1)
_C3 = np.float32(5.5504109e-2)
_C4 = np.float32(9.6181291e-3)
_C5 = np.float32(1.3333558e-3)
_C6 = np.float32(1.5403530e-4)


def load(values: Any, index: Any) -> Any:
    """The float32 at an index of an array of float32, or of bfloat16's bits."""
    raise NotImplementedError("for compiled code")


def store(values: Any, index: Any, value: Any) -> None:
    """Keeps a float32 there, rounded to nearest even for bfloat16."""
    raise NotImplementedError("for compiled code")


@overload(load, jit_options=COMPILE, strict=False)  # type: ignore[arg-type]
def _load(values: Any, index: Any) -> Callable[..., Any]:
    if isinstance(values.dtype, types.Float):
        return lambda values, index: values[index]
    return lambda values, index: np.uint32(np.uint32(values[index]) << 16).view(np.float32)


@overload(store, jit_options=COMPILE, strict=False)  # type: ignore[arg-type]
def _store(values: Any, index: Any, value: Any) -> Callable[..., None]:
    if isinstance(values.dtype, types.Float):

        def keep(values: Any, index: Any, value: Any) -> None:
            values[index] = value

        return keep

    def round_and_keep(values: Any, index: Any, value: Any) -> None:
        bits = np.float32(value).view(np.uint32)
        half = np.uint32(0x7FFF) + (np.uint32(bits >> 16) & np.uint32(1))
        values[index] = np.uint16(np.uint32(bits + half) >> 16)

    return round_and_keep


@njit(**COMPILE)
def exp2(power: Any) -> Any:
    """2 to a float32 power; powers beyond +-126 count as that."""
    # NOTE: in this order NaN stays NaN.
    power = _LOWEST if power < _LOWEST else power
    power = _HIGHEST if power > _HIGHEST else power
    whole = np.floor(power + _HALF)
    rest = power - whole  # -1/2 .. 1/2
    series = _C5 + rest * _C6
    series = _C4 + rest * series
    series = _C3 + rest * series
    series = _C2 + rest * series
    series = _C1 + rest * series
    exponent = np.int32((np.int32(whole) + np.int32(127)) << 23)  # of the float32 2^whole
    return (_ONE + rest * series) * exponent.view(np.float32)


@njit(**COMPILE)
def tanh(value: Any) -> Any:
    """The hyperbolic tangent, to about 2e-7."""
    return _ONE - _TWO / (_ONE + exp2(_TWO * LOG2_E * value))
