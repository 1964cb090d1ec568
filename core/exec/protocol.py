"""What the engine needs of a runner, real or simulated. It loads no torch."""

from typing import Protocol

from core.sched.output import SchedulerOutput, StepResult

__all__ = ["RunnerProtocol"]


class RunnerProtocol(Protocol):
    """Runs one step after another."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a sequence."""

    @property
    def max_model_len(self) -> int:
        """The longest context that the model was made for."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""

    def execute(self, output: SchedulerOutput) -> StepResult:
        """Computes the scheduled tokens and samples; touches memory in the output's order."""
