"""What a workload is: requests with an arrival, two lengths, and the names of their prefixes.

It knows neither files nor models nor text: a request is as long as it is, whatever it says.
Invariants: requests are in order of arrival, the first at second 0; every length is at least 1;
a request with prefix names has one for each run of `prefix_unit` prompt tokens, at most.
"""

from dataclasses import dataclass

from core.errors import InvariantError
from core.text import sentence

__all__ = ["Workload", "WorkloadRequest"]


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request; `arrival` in seconds since the workload's first one.

    `prefix` names the prompt's leading runs of `Workload.prefix_unit` tokens; the last may be
    partial. Two requests with an equal name at the same place have equal prompts up to there.
    """

    arrival: float
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()

    @property
    def total_tokens(self) -> int:
        """Prompt and output together."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival, and where they come from.

    `skipped` counts entries of the file that are not here; `source` is a file's name or the
    settings of a synthetic workload. `notes` say what a reader of its numbers must know: codes of
    the catalogue's section `workload.note`, each with a count.
    """

    name: str
    format: str
    requests: tuple[WorkloadRequest, ...]
    prefix_unit: int = 0
    skipped: int = 0
    source: str = ""
    notes: tuple[tuple[str, int], ...] = ()

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def mean_prompt(self) -> float:
        """Prompt tokens of a request, on average; 0 without requests."""
        return sum(r.prompt_tokens for r in self.requests) / max(1, len(self.requests))

    @property
    def mean_output(self) -> float:
        """Output tokens of a request, on average; 0 without requests."""
        return sum(r.output_tokens for r in self.requests) / max(1, len(self.requests))

    @property
    def max_prompt(self) -> int:
        """The longest prompt."""
        return max((r.prompt_tokens for r in self.requests), default=0)

    @property
    def max_output(self) -> int:
        """The longest output."""
        return max((r.output_tokens for r in self.requests), default=0)

    @property
    def max_total(self) -> int:
        """The longest prompt and output together: the context that an engine must offer."""
        return max((r.total_tokens for r in self.requests), default=0)

    @property
    def duration(self) -> float:
        """Seconds from the first arrival to the last."""
        return self.requests[-1].arrival if self.requests else 0.0

    @property
    def rate(self) -> float:
        """Arrivals a second, over the gaps between them; 0 if all arrive at once."""
        return (len(self.requests) - 1) / self.duration if self.duration else 0.0

    def remarks(self, lang: str = "en") -> list[str]:
        """`notes` as sentences."""
        return [sentence(f"workload.note.{code}", lang, count=count) for code, count in self.notes]

    def check(self) -> None:
        """Recounts the invariants.

        Raises:
            InvariantError: one is broken; the message names the request.
        """
        before = 0.0
        for number, request in enumerate(self.requests):
            if request.arrival < before or (number == 0 and request.arrival != 0):
                raise InvariantError(f"{self.name}: request {number} is out of order: {request}")
            if request.prompt_tokens < 1 or request.output_tokens < 1:
                raise InvariantError(f"{self.name}: request {number} has no length: {request}")
            if (len(request.prefix) - 1) * self.prefix_unit >= request.prompt_tokens:
                raise InvariantError(f"{self.name}: request {number} has a long prefix: {request}")
            before = request.arrival
