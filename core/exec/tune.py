"""Which dtype and how many threads: measured once on this machine, then remembered.

bfloat16 can be ten times faster than float32 on one processor and slower on another, and more
threads are not always better, so a decode-like run of matrix products decides. It knows a
model's matrix sizes, not the model. The answer is kept in the cache folder by machine, torch
version and sizes.
"""

import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["MatrixSizes", "Tuning", "cache_dir", "choose"]

_BATCH = 16
_SECONDS = 0.15  # for each candidate
_BUDGET = 48_000_000  # weights in the trial: past any cache, quick to allocate
_DTYPES = ("bfloat16", "float32")
# A less precise dtype must earn its place.
_GAIN = 1.1


@dataclass(frozen=True, slots=True)
class MatrixSizes:
    """A model's matrices, as [out, in] pairs: one layer's, and the output's."""

    layer: tuple[tuple[int, int], ...]
    output: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Tuning:
    """The fastest choice, and the seconds that each candidate took for one trial."""

    dtype: str
    threads: int
    seconds: dict[str, float]


def cache_dir() -> Path:
    """$GLASSBLOCK_CACHE, else `glassblock` in the user's cache folder; not made here."""
    chosen = os.environ.get("GLASSBLOCK_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "glassblock"


def choose(sizes: MatrixSizes) -> Tuning:
    """The remembered choice for these sizes, else a measured one (1 to 2 seconds)."""
    path = cache_dir() / "tuning.json"
    key = _key(sizes)
    known = _read(path)
    try:
        return Tuning(**known[key])
    except (KeyError, TypeError):
        tuning = _measure(sizes)
    _write(path, _read(path) | {key: asdict(tuning)})
    return tuning


def _measure(sizes: MatrixSizes) -> Tuning:
    before = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    counts = sorted({max(1, (cores or 1) // 2), cores or 1})
    seconds: dict[str, float] = {}
    try:
        for dtype in _DTYPES:
            trial = _Trial(sizes, getattr(torch, dtype))
            for threads in counts:
                torch.set_num_threads(threads)
                seconds[f"{dtype}/{threads}"] = trial.seconds()
    finally:
        torch.set_num_threads(before)
    best = {
        dtype: min((seconds[f"{dtype}/{threads}"], threads) for threads in counts)
        for dtype in _DTYPES
    }
    dtype = "bfloat16" if best["bfloat16"][0] * _GAIN < best["float32"][0] else "float32"
    return Tuning(dtype=dtype, threads=best[dtype][1], seconds=seconds)


class _Trial:
    """Some layers' products for 16 rows, each weight read once, as in a decode step."""

    def __init__(self, sizes: MatrixSizes, dtype: torch.dtype) -> None:
        self._weights = [
            # NOTE: written memory; untouched pages would all be one cached page of zeros.
            torch.full(shape, 0.01, dtype=dtype)
            for shape in _within_budget(sizes)
        ]
        self._inputs = {
            weight.shape[1]: torch.ones(_BATCH, weight.shape[1], dtype=dtype)
            for weight in self._weights
        }

    def seconds(self) -> float:
        """The fastest of as many runs as fit the time, at least two."""
        deadline = time.perf_counter() + _SECONDS
        times: list[float] = []
        with torch.inference_mode():
            while len(times) < 2 or time.perf_counter() < deadline:
                start = time.perf_counter()
                for weight in self._weights:
                    F.linear(self._inputs[weight.shape[1]], weight)
                times.append(time.perf_counter() - start)
        return min(times)


def _within_budget(sizes: MatrixSizes) -> list[tuple[int, int]]:
    """The output's and then layers' shapes while they fit; a huge matrix is cut to fit."""
    rows = max(1, min(sizes.output[0], _BUDGET // 2 // sizes.output[1]))
    shapes = [(rows, sizes.output[1])]
    left = _BUDGET - rows * sizes.output[1]
    while True:
        for out_size, in_size in sizes.layer:
            fit = min(out_size, left // in_size)
            if fit < 1:
                return shapes
            shapes.append((fit, in_size))
            left -= fit * in_size


def _key(sizes: MatrixSizes) -> str:
    shapes: Sequence[tuple[int, int]] = (*sizes.layer, sizes.output)
    model = "-".join(f"{out_size}x{in_size}" for out_size, in_size in shapes)
    cpu = torch.backends.cpu.get_cpu_capability()
    machine = f"{platform.node()}/{platform.machine()}/{cpu}/{os.cpu_count()}"
    return f"{machine}/torch-{torch.__version__}/{model}"


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _write(path: Path, known: dict[str, dict[str, Any]]) -> None:
    """Replaces the file at once; a cache that can't be written costs only time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(known, file, indent=1)
        os.replace(file.name, path)
    except OSError:
        return
