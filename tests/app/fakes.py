"""A model that isn't there: engines over the fake runner, held back or failing on demand."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.live import Plan
from core.config import EngineConfig
from core.engine import Engine
from core.request import SamplingParams
from core.sched.output import SchedulerOutput, StepResult
from core.workload.scenario import Arrival
from tests.builders import FakeCodec, FakeRunner, make_config


@dataclass
class HeldRunner(FakeRunner):
    """Waits before every step until the gate is open."""

    gate: threading.Event = field(default_factory=threading.Event)

    def execute(self, output: SchedulerOutput) -> StepResult:
        assert self.gate.wait(20)
        return super().execute(output)


class FakeBackend:
    """Makes engines over the given runner, or over a new one each."""

    facts: Mapping[str, Any] = {"name": "Fake", "dtype": "float32", "device": "cpu"}

    def __init__(self, runner: FakeRunner | None = None, fault: Exception | None = None) -> None:
        self.runner, self.fault = runner, fault

    def block_bytes(self, config: EngineConfig) -> int:
        return config.block_size * (256 if config.kv_cache_dtype == "fp8" else 1024)

    def build(self, config: EngineConfig, title: Mapping[str, str], first_step: int = 0) -> Engine:
        if self.fault is not None:
            raise self.fault
        runner = self.runner or FakeRunner()
        facts = dict(self.facts)
        return Engine(config, runner, FakeCodec(), model=facts, title=title, first_step=first_step)


def make_plan(*prompts: str, config: EngineConfig | None = None, **params: Any) -> Plan:
    settings = SamplingParams(**{"max_tokens": 5, "ignore_eos": True, **params})
    arrivals = tuple(Arrival(prompt, settings) for prompt in prompts)
    return Plan(config or make_config(), arrivals, {"en": "A test"})
