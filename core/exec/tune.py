"""Which dtype and how many threads: measured once on this machine, then remembered.

bfloat16 can be ten times faster than float32 on one processor and slower on another, and more
threads are not always better, so a decode-like run of matrix products decides. The candidates take
turns and their medians count, so that a slow moment of the machine falls on all of them; one that
is far behind is asked no more. It knows a model's matrix sizes, not the model.

The answer is kept in the cache folder by machine, torch version and sizes. An answer from a time
when other programs held the processor is kept too, and measured again once they are gone: threads
that wait for each other look worse than they are when one of them is not running.
"""

import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from core.exec import pack

__all__ = ["MatrixSizes", "Tuning", "cache_dir", "choose"]

_BATCH = 16
_TURNS = 7  # of each candidate
_HOPELESS = 3.0  # times the best of a turn: further turns of it would only cost time
# Share of its wall time that a run on one thread gets on a machine of its own.
_OWN = 0.85
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
    """The fastest choice.

    Attributes:
        seconds: median seconds of each candidate for one trial.
        busy: whether other programs held the processor meanwhile.
    """

    dtype: str
    threads: int
    seconds: dict[str, float]
    busy: bool = False


def cache_dir() -> Path:
    """$GLASSBLOCK_CACHE, else `glassblock` in the user's cache folder; not made here."""
    chosen = os.environ.get("GLASSBLOCK_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "glassblock"


def choose(sizes: MatrixSizes) -> Tuning:
    """The remembered choice for these sizes, else a measured one (a second or a few)."""
    path = cache_dir() / "tuning.json"
    key = _key(sizes)
    known = _read(path)
    try:
        remembered = Tuning(**known[key])
        if not (remembered.busy and _is_idle()):
            return remembered
    except (KeyError, TypeError):
        pass
    tuning = _measure(sizes)
    _write(path, _read(path) | {key: asdict(tuning)})
    return tuning


def _measure(sizes: MatrixSizes) -> Tuning:
    before = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    counts = sorted({1, max(1, (cores or 1) // 2), cores or 1})
    trials = {dtype: _Trial(sizes, getattr(torch, dtype)) for dtype in _DTYPES}
    wall, processor = time.perf_counter(), time.process_time()
    for trial in trials.values():  # one thread, so that processor time is wall time of our own
        torch.set_num_threads(1)
        trial.seconds()
    share = (time.process_time() - processor) / (time.perf_counter() - wall)
    try:
        turns = _in_turns(trials, counts)
    finally:
        torch.set_num_threads(before)
    seconds = {candidate: statistics.median(times) for candidate, times in turns.items()}
    best = {
        dtype: min((seconds[dtype, threads], threads) for threads in counts) for dtype in _DTYPES
    }
    dtype = "bfloat16" if best["bfloat16"][0] * _GAIN < best["float32"][0] else "float32"
    named = {f"{name}/{threads}": time for (name, threads), time in seconds.items()}
    return Tuning(dtype, best[dtype][1], named, busy=share < _OWN)


def _in_turns(trials: "dict[str, _Trial]", counts: list[int]) -> dict[tuple[str, int], list[float]]:
    """Seconds of each (dtype, threads) in each of its turns."""
    turns: dict[tuple[str, int], list[float]] = {
        (dtype, threads): [] for threads in counts for dtype in trials
    }
    alive = list(turns)
    for _ in range(_TURNS):
        for dtype, threads in alive:
            torch.set_num_threads(threads)
            turns[dtype, threads].append(trials[dtype].seconds())
        leader = min(min(times) for times in turns.values())
        alive = [candidate for candidate in alive if turns[candidate][-1] <= _HOPELESS * leader]
    return turns


def _is_idle() -> bool:
    """Whether the machine has less than one core's work just now."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] < 1.0


class _Trial:
    """Some layers' products for 16 rows, each weight read once, as in a decode step."""

    def __init__(self, sizes: MatrixSizes, dtype: torch.dtype) -> None:
        self._products = [_product(shape, dtype) for shape in _within_budget(sizes)]
        self._inputs = {
            width: torch.ones(_BATCH, width, dtype=dtype) for width, _ in self._products
        }

    def seconds(self) -> float:
        """Of one run through all of them."""
        with torch.inference_mode():
            start = time.perf_counter()
            for width, product in self._products:
                product(self._inputs[width])
            return time.perf_counter() - start


def _product(shape: tuple[int, int], dtype: torch.dtype) -> tuple[int, Callable[[Tensor], Tensor]]:
    """The width of the rows and a product as the engine runs it: packed where torch can."""
    # NOTE: written memory; untouched pages would all be one cached page of zeros.
    weight = torch.full(shape, 0.01, dtype=dtype)
    try:
        return shape[1], pack.packed_product(weight, None)
    except pack.FAULTS:
        return shape[1], lambda rows: F.linear(rows, weight)


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
