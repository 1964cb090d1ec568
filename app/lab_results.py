"""The recorded results that the Kernel lab shows: this project's own files, read once.

It owns their places and what is trusted of them: a dry run of the GPU script is no result. It does
not know Streamlit.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from core.bench.report import Report
from core.bench.report_file import read_report
from core.errors import GlassblockError, TraceError
from core.exec.decode_points import SpeedRun

__all__ = ["COMMAND", "GpuCase", "GpuResult", "benches", "compiled", "gpu_results", "recorded"]

COMMAND = "python -m tests.bench.decode_speed --threads 1"
_FOLDER = Path(__file__).parents[1] / "assets" / "results"
_BENCHES = ("engine", "engine_at_once", "pool", "kernels", "simulate", "ui")
_log = logging.getLogger("glassblock")


@dataclass(frozen=True, slots=True)
class GpuCase:
    """One shape on a GPU: seconds and share of a copy's bandwidth by kernel."""

    shape: Mapping[str, Any]
    splits: int
    seconds: Mapping[str, float]
    rates: Mapping[str, float]
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class GpuResult:
    """What `python -m tests.gpu` wrote on one GPU.

    Attributes:
        machine: device and versions.
        copy: GB/s of a device copy, 0 when the kernels' part failed.
        cases: of the kernels' part.
        checks: (group, checks, largest error) of the correctness part.
        engine: tokens a second by how the kernels were launched.
        failed: (part, what it said).
    """

    machine: Mapping[str, Any]
    copy: float
    cases: tuple[GpuCase, ...]
    checks: tuple[tuple[str, int, float], ...]
    engine: Mapping[str, float]
    failed: tuple[tuple[str, str], ...]

    @classmethod
    def from_json(cls, plain: Any) -> "GpuResult | None":
        """The result of a file; None for a dry run, which measured nothing.

        Raises:
            TraceError: the values are something else.
        """
        try:
            machine = dict(plain["machine"])
            if machine.get("dry_run", True):
                return None
            parts = {n: plain.get(n, {}) for n in ("correctness", "kernels", "engine")}
            failed = tuple((n, str(p["failed"])) for n, p in parts.items() if "failed" in p)
            kernels, engine = parts["kernels"], parts["engine"]
            copy = kernels["copy"]["gb_per_s"]["median"] if "copy" in kernels else 0.0
            checks = tuple(
                (name, int(group["checks"]), float(group["largest_error"]))
                for name, group in parts["correctness"].items()
                if isinstance(group, dict) and "checks" in group
            )
            rates = {
                name: float(found["tokens_per_s"])
                for name, found in engine.items()
                if isinstance(found, dict) and "tokens_per_s" in found
            }
            cases = tuple(map(_case, kernels.get("decode", ())))
            return cls(machine, float(copy), cases, checks, rates, failed)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise TraceError("gpu_result", detail=repr(error)) from error


def recorded(folder: Path = _FOLDER) -> SpeedRun | None:
    """The CPU record that came with the project; None when there is none."""
    path = folder / "kernel_lab.json"
    return SpeedRun.from_json(_read(path)) if path.is_file() else None


def gpu_results(folder: Path = _FOLDER) -> Sequence[GpuResult]:
    """The results of all GPUs that were measured; a file that can't be read is left out."""
    found = []
    for path in sorted(folder.glob("gpu_*.json")):
        try:
            result = GpuResult.from_json(_read(path))
        except (TraceError, ValueError) as fault:
            _log.warning("%s is left out: %s", path.name, fault)
            continue
        if result is not None:
            found.append(result)
    return found


@cache
def benches(folder: Path = _FOLDER) -> Mapping[str, Report]:
    """The recorded reports of `glassblock bench` by name; one that can't be read is left out."""
    found: dict[str, Report] = {}
    for name in _BENCHES:
        path = folder / f"bench_{name}.json"
        try:
            if path.is_file():
                found[name] = read_report(path.read_bytes(), path.name)
        except GlassblockError as fault:
            _log.warning("%s is left out: %s", path.name, fault)
    return found


@cache
def compiled(folder: Path = _FOLDER) -> Mapping[str, Any] | None:
    """Which kernels were compiled for which targets, and with what; None without a record."""
    path = folder / "kernels_compiled.json"
    plain: Mapping[str, Any] | None = _read(path) if path.is_file() else None
    return plain


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _case(plain: Mapping[str, Any]) -> GpuCase:
    kernels: Mapping[str, Any] = plain["kernels"]
    return GpuCase(
        shape=dict(plain["shape"]),
        splits=int(plain["splits"]),
        seconds={name: float(k["seconds"]["median"]) for name, k in kernels.items()},
        rates={name: float(k["gb_per_s"]) for name, k in kernels.items()},
        shares={name: float(k["share_of_copy"]) for name, k in kernels.items()},
    )
