"""The setting of the PagedAttention paper (SOSP'23), and runs in it without a model.

One device and model: OPT-13B on an A100 with 40 GB, 12 GiB for K and V, contexts up to 2048.
Lengths of "ShareGPT" and "Alpaca" are drawn from log-normals with the means that the paper reports
and a standard deviation as large as the mean: the paper gives no spread, and that is what one
assumes who knows a mean only. Nothing here is fitted to the results that are to be reproduced.

A run here takes the real scheduler and memory; times are modelled. It does not know what is
measured: a caller observes the engine at each forward.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from core.capacity.hardware import GIB, find_hardware
from core.capacity.shapes import find_shape
from core.config import EngineConfig
from core.engine import Engine
from core.exec.cost_model import CostModel
from core.exec.sim_runner import NoText, Observer, SimRunner
from core.request import SamplingParams
from core.text import sentence
from core.workload.requests import Workload
from core.workload.synthetic import PRESETS, Recipe, make
from core.workload.systems import system_config

__all__ = [
    "BLOCK_SIZE",
    "CONTEXT",
    "KV_GIB",
    "MIXES",
    "SLOTS",
    "Note",
    "Progress",
    "backlog",
    "drive",
    "paper_config",
    "paper_cost",
    "sim_engine",
]

Progress = Callable[[float], None]
"""Is told the share that is done; may raise to stop the run."""

MIXES = ("alpaca", "sharegpt")
CONTEXT = 2048
KV_GIB = 12
# 12 GiB hold 15,728.64 slots of OPT-13B; the paper's 15.7K and 7 x 2048 + 8.86 % mean this many.
SLOTS = round(KV_GIB * GIB / 819_200)
BLOCK_SIZE = 16
_BUDGET = 8192
_HOST_GIB = 4  # vLLM 0.x's swap space


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a reader of the figures must know: a code of `paper.note` and its values."""

    code: str
    values: dict[str, Any]

    def sentence(self, lang: str = "en") -> str:
        """The note in words."""
        return sentence(f"paper.note.{self.code}", lang, **self.values)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"code": self.code, "values": self.values}


def paper_cost() -> CostModel:
    """The roofline of the paper's smallest setting."""
    return CostModel(find_hardware("a100-40gb"), find_shape("opt-13b"))


def paper_config(
    system: str = "paged", block_size: int = BLOCK_SIZE, max_num_seqs: int = 256
) -> EngineConfig:
    """The engine of a system in the paper's size; paged memory gets whole blocks only.

    The budget lets any prompt in beside all that decodes: Orca and the first vLLM cut none.
    """
    slot_bytes = find_shape("opt-13b").slot_bytes()
    return system_config(
        system,
        num_slots=SLOTS,
        block_size=block_size,
        semantics="paper",
        max_num_seqs=max_num_seqs,
        num_host_blocks=_HOST_GIB * GIB // (slot_bytes * block_size),
        max_num_batched_tokens=_BUDGET,
        max_model_len=CONTEXT,
    )


def backlog(mix: str, count: int, seed: int, spread: float = 1.0) -> Workload:
    """Requests of a mix that all wait from the start, so that memory is always wanted.

    `spread` is the standard deviation of both lengths, in means.
    """
    recipe: Recipe = replace(
        PRESETS[mix], count=count, seed=seed, arrivals="at_once", prompt_cv=spread, output_cv=spread
    )
    return make(recipe, mix)


def sim_engine(
    config: EngineConfig, cost: CostModel, observe: Observer | None = None
) -> tuple[Engine, SimRunner]:
    """An engine without a model and without a record, and its runner."""
    runner = SimRunner(cost, max_model_len=CONTEXT, block_size=config.block_size, observe=observe)
    return Engine(config, runner, NoText(), record=False, measured=False), runner


def drive(
    engine: Engine, runner: SimRunner, workload: Workload, samples: int = 1
) -> Iterator[float]:
    """Runs a workload on the modelled clock; yields it after each step.

    A request joins before the first step that begins at or after its arrival; idle time passes at
    once.
    """
    clock, waiting = 0.0, list(reversed(workload.requests))
    while waiting or engine.has_work:
        if not engine.has_work:
            clock = max(clock, waiting[-1].arrival)
        while waiting and waiting[-1].arrival <= clock:
            request = waiting.pop()
            params = SamplingParams(max_tokens=request.output_tokens, n=samples)
            engine.add_request([0] * request.prompt_tokens, params)
        if engine.has_work:
            engine.step()
            clock += runner.seconds
            yield clock
