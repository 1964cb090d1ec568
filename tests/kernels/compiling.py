"""Compiles the kernels for GPUs that needn't be here, and reads their shared memory.

python -m tests.kernels.compiling      all of CASES for all of TARGETS, into assets/results
python -m tests.kernels.compiling NAME...      only these cases, to the terminal

Run it without TRITON_INTERPRET. Each case is a kernel with the settings that it would be launched
with on that target.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import tuning
from kernels.triton_copy import move_kernel
from kernels.triton_decode import decode_kernel, join_kernel
from kernels.triton_launch import power_of_two
from kernels.triton_mass import mass_kernel
from kernels.triton_prefill import prefill_kernel
from kernels.triton_write import write_kernel
from tests.gpu.contiguous import contiguous_kernel

RESULT = Path(__file__).parents[2] / "assets" / "results" / "kernels_compiled.json"
# Name, target, and the shared memory that one program may have: 163, 227 and 64 KB.
TARGETS = {
    "sm80": (GPUTarget("cuda", 80, 32), 166_912),
    "sm90": (GPUTarget("cuda", 90, 32), 232_448),
    "sm100": (GPUTarget("cuda", 100, 32), 232_448),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 65_536),
}
_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a kernel is specialised for."""

    dtype: str = "bfloat16"
    head_dim: int = 128
    block_size: int = 16
    kv_heads: int = 8
    group: int = 4
    splits: int = 8
    softcap: bool = False
    fp8: bool = False
    checked: bool = False


def _attention(shape: Shape, arch: str, kernel: tuning.Kernel) -> tuple[dict[str, Any], Any]:
    settings = tuning.settings_for(kernel, shape.dtype, shape.head_dim, shape.block_size, arch)
    native = arch.startswith("sm") and int(arch[2:]) >= 89
    constants = {
        "HEADS": shape.kv_heads * shape.group,
        "GROUP": shape.group,
        "HEAD_DIM": shape.head_dim,
        "BLOCK_SIZE": shape.block_size,
        "SOFTCAP": shape.softcap,
        "FP8": shape.fp8,
        "NATIVE": native,
        "CHECKED": shape.checked,
        "WIDE": False,
        "TILE": settings.tile,
        "BLOCK_D": max(16, power_of_two(shape.head_dim)),
    }
    return constants, settings


def _decode(shape: Shape, arch: str) -> tuple[Any, dict[str, Any], dict[str, int]]:
    constants, settings = _attention(shape, arch, "decode")
    constants |= {"SPLITS": shape.splits, "ROWS": max(16, power_of_two(shape.group))}
    return decode_kernel, constants, _options(settings)


def _prefill(shape: Shape, arch: str) -> tuple[Any, dict[str, Any], dict[str, int]]:
    constants, settings = _attention(shape, arch, "prefill")
    rows = max(16, settings.rows, power_of_two(shape.group))
    constants |= {"ROWS": rows, "TOKENS": rows // shape.group}
    return prefill_kernel, constants, _options(settings)


def _mass(shape: Shape, arch: str) -> tuple[Any, dict[str, Any], dict[str, int]]:
    constants, _ = _attention(shape, arch, "decode")
    constants["ROWS"] = max(16, power_of_two(shape.group))
    constants["TILE"] = min(64, max(16, power_of_two(shape.block_size)))
    return mass_kernel, constants, {}


def _contiguous(shape: Shape, arch: str) -> tuple[Any, dict[str, Any], dict[str, int]]:
    constants, settings = _attention(shape, arch, "decode")
    constants |= {"SPLITS": shape.splits, "ROWS": max(16, power_of_two(shape.group))}
    return contiguous_kernel, constants, _options(settings)


def _join(shape: Shape, arch: str) -> tuple[Any, dict[str, Any], dict[str, int]]:
    constants = {
        "HEADS": shape.kv_heads * shape.group,
        "HEAD_DIM": shape.head_dim,
        "SPLITS": shape.splits,
        "BLOCK_S": power_of_two(shape.splits),
        "BLOCK_D": max(16, power_of_two(shape.head_dim)),
    }
    return join_kernel, constants, {}


def _write(shape: Shape, arch: str) -> tuple[Any, dict[str, Any], dict[str, int]]:
    dims = power_of_two(shape.head_dim)
    constants = {
        "HEADS": shape.kv_heads,
        "HEAD_DIM": shape.head_dim,
        "BLOCK_H": max(1, min(power_of_two(shape.kv_heads), 2048 // dims)),
        "BLOCK_D": dims,
        "FP8": shape.fp8,
        "CHECKED": shape.checked,
    }
    return write_kernel, constants, {}


def _move(shape: Shape, arch: str) -> tuple[Any, dict[str, Any], dict[str, int]]:
    return move_kernel, {"BYTES": 8192}, {}


def _options(settings: tuning.Settings) -> dict[str, int]:
    return {"num_warps": settings.num_warps, "num_stages": settings.num_stages}


_Maker = Callable[[Shape, str], tuple[Any, dict[str, Any], dict[str, int]]]
CASES: dict[str, tuple[_Maker, Shape]] = {
    "decode": (_decode, Shape()),
    "decode, one split": (_decode, Shape(splits=1, dtype="float16")),
    "decode, block size 1": (_decode, Shape(block_size=1, kv_heads=3, group=3, head_dim=64)),
    "decode, block size 256": (_decode, Shape(block_size=256, kv_heads=1, group=71, head_dim=64)),
    "decode, head_dim 80, checked": (_decode, Shape(head_dim=80, group=1, checked=True)),
    "decode, head_dim 256, softcap": (_decode, Shape(head_dim=256, group=2, softcap=True)),
    "decode, float32": (_decode, Shape(dtype="float32")),
    "decode, float32, head_dim 256": (_decode, Shape(dtype="float32", head_dim=256)),
    "decode, fp8": (_decode, Shape(fp8=True)),
    "prefill": (_prefill, Shape()),
    "prefill, head_dim 96, block size 1": (_prefill, Shape(head_dim=96, block_size=1, group=3)),
    "prefill, head_dim 256, softcap": (_prefill, Shape(head_dim=256, softcap=True)),
    "prefill, float32": (_prefill, Shape(dtype="float32")),
    "prefill, float32, head_dim 256": (_prefill, Shape(dtype="float32", head_dim=256)),
    "prefill, fp8, checked": (_prefill, Shape(fp8=True, checked=True)),
    "join": (_join, Shape()),
    "join, 64 splits, head_dim 256": (_join, Shape(splits=64, head_dim=256)),
    "mass": (_mass, Shape()),
    "mass, fp8, softcap": (_mass, Shape(fp8=True, softcap=True)),
    "write": (_write, Shape()),
    "write, fp8, head_dim 80": (_write, Shape(fp8=True, head_dim=80)),
    "move": (_move, Shape()),
    "contiguous decode, for comparison": (_contiguous, Shape()),
}
# One of each kernel, and the two that work hardest: what every run of the tests compiles.
QUICK = ("decode", "decode, fp8", "prefill", "join", "mass", "write", "move")

_INDICES = {
    "block_tables": "*i64", "seq_lens": "*i64", "query_start_loc": "*i64", "pairs": "*i64",
    "slot_mapping": "*i64", "decode_seqs": "*i32", "pieces": "*i32",
}  # fmt: skip
_FLOATS = ("parts", "lse", "best_out", "total_out", "key_scale", "value_scale")


def compile_case(name: str, arch: str) -> dict[str, Any]:
    """Shared memory of a case on a target, once the target's compiler has taken it."""
    maker, shape = CASES[name]
    kernel, constants, options = maker(shape, arch)
    signature = {p: _type(p, p in constants, shape) for p in kernel.arg_names}
    attributes = {
        (index,): [["tt.divisibility", 16]]
        for index, kind in enumerate(signature.values())
        if kind.startswith("*")
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, places, attributes)
    target, limit = TARGETS[arch]
    compiled = triton.compile(source, target=target, options=options)
    code = compiled.asm["cubin" if target.backend == "cuda" else "hsaco"]
    return {
        "shared_bytes": compiled.metadata.shared,
        "limit_bytes": limit,
        "num_warps": compiled.metadata.num_warps,
        "num_stages": compiled.metadata.num_stages,
        "code_bytes": len(code),
    }


def _type(name: str, constant: bool, shape: Shape) -> str:
    if constant:
        return "constexpr"
    number = "*" + _TYPES[shape.dtype]
    cache = "*u8" if shape.fp8 else number
    if name in _INDICES:
        return _INDICES[name]
    if name in ("key_cache", "value_cache"):
        return cache
    if name in ("source", "destination"):
        return "*u8"
    if name == "parts" and shape.splits == 1:
        return number
    if name in _FLOATS:
        return "*fp32"
    if name in ("query", "key", "value", "output"):
        return number
    return "fp32" if name in ("scale", "softcap") else "i32"


def _all(names: tuple[str, ...]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name in names:
        for arch in TARGETS:
            yield name, arch, compile_case(name, arch)


def main(names: list[str]) -> None:
    """Compiles, prints a line each, and writes the record when nothing was named."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        sys.exit("unset TRITON_INTERPRET: the interpreter compiles nothing")
    found: dict[str, dict[str, Any]] = {}
    for name, arch, facts in _all(tuple(names) or tuple(CASES)):
        found.setdefault(name, {})[arch] = facts
        print(f"{name:40} {arch:8} {json.dumps(facts)}", flush=True)
    if not names:
        versions = {"triton": triton.__version__, "torch": torch.__version__}
        record = {"what": "compiled, not run", "versions": versions, "kernels": found}
        RESULT.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
