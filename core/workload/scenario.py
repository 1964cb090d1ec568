"""Scenarios: a few requests and engine settings that show one thing, as TOML.

    title = {en = "…", zh = "…"}
    about = {en = "…", zh = "…"}
    [engine]             # any setting of EngineConfig
    block_size = 4
    [[request]]          # any setting of SamplingParams, and:
    prompt = "…"         # text
    at_step = 3          # arrives before this step (default 1)
    priority = 0
    chat = false         # wrap in the model's chat template

It knows the engine's public calls; it does not know models.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

from core.checks import check_number, check_switch
from core.config import EngineConfig
from core.engine import Engine, StepRecord
from core.errors import WorkloadError
from core.request import SamplingParams
from core.text import Phrase

__all__ = ["Arrival", "Joining", "Scenario", "find_scenario", "load_scenario", "play",
           "scenario_names"]  # fmt: skip

_PARTS = ("title", "about", "engine", "request")
_OWN_KEYS = ("prompt", "at_step", "priority", "chat")  # of a request, beside the sampling settings
_MAX_STEP = 1 << 31
_FOLDER = Path(__file__).parents[2] / "assets" / "scenarios"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a scenario; `at_step` is the step before which it arrives."""

    prompt: str
    params: SamplingParams
    at_step: int = 1
    priority: int = 0
    chat: bool = False

    def join(self, engine: Engine) -> None:
        """Puts the request in the engine's line."""
        engine.add_request(self.prompt, self.params, priority=self.priority, chat=self.chat)


class Joining(Protocol):
    """What can be played: something that joins an engine's line before a step."""

    @property
    def at_step(self) -> int:
        """The step before which it arrives."""

    def join(self, engine: Engine) -> None:
        """Puts the request in the engine's line."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Engine settings and arrivals; `title` and `about` by language."""

    name: str
    title: Mapping[str, str]
    about: Mapping[str, str]
    config: EngineConfig
    arrivals: tuple[Arrival, ...]

    def with_changes(
        self, engine: Mapping[str, Any], params: Mapping[str, Any] | None = None
    ) -> "Scenario":
        """This scenario with some settings replaced.

        Raises:
            ConfigError: a replaced value that can't work.
        """
        changed = tuple(
            replace(arrival, params=replace(arrival.params, **(params or {})))
            for arrival in self.arrivals
        )
        return replace(self, config=replace(self.config, **engine), arrivals=changed)


def scenario_names() -> list[str]:
    """Names of the scenarios that come with glassblock, in teaching order."""
    return [path.stem for path in sorted(_FOLDER.glob("*.toml"))]


def find_scenario(name: str) -> Scenario:
    """A scenario by name (with or without its number), or from a .toml file.

    Raises:
        WorkloadError: there is none, or the file has a fault.
    """
    for known in scenario_names():
        if name in (known, known.split("_", 1)[-1]):
            return load_scenario(_FOLDER / f"{known}.toml")
    if name.endswith(".toml"):
        return load_scenario(Path(name))
    names = ", ".join(known.split("_", 1)[-1] for known in scenario_names())
    raise WorkloadError("no_scenario", name=name, names=names)


def load_scenario(path: Path) -> Scenario:
    """Reads a scenario file.

    Raises:
        WorkloadError: it can't be read, or a value has a fault; the message names the place.
    """
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WorkloadError("unreadable", path=path, detail=error.strerror) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        detail = Phrase("scenario.toml", {"detail": str(error)})
        raise WorkloadError("scenario_fault", path=path, where="TOML", detail=detail) from error
    where = "TOML"
    try:
        for where in plain:
            if where not in _PARTS:
                raise WorkloadError("scenario_part", known=", ".join(_PARTS))
        texts = {}
        for where in ("title", "about"):
            texts[where] = _by_language(plain.get(where))
        where = "engine"
        config = EngineConfig.from_dict(_table(plain.get(where, {})))
        where = "request"
        arrivals = []
        for number, request in enumerate(_tables(plain.get(where)), start=1):
            where = f"request {number}"
            arrivals.append(_arrival(request))
    except (TypeError, ValueError) as error:
        raise WorkloadError("scenario_fault", path=path, where=where, detail=error) from error
    return Scenario(path.stem, texts["title"], texts["about"], config, tuple(arrivals))


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WorkloadError("scenario_table", found=value)
    return value


def _tables(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(v, dict) for v in value):
        raise WorkloadError("scenario_tables")
    return value


def _by_language(texts: Any) -> dict[str, str]:
    if not isinstance(texts, dict) or "en" not in texts:
        raise WorkloadError("scenario_texts")
    return {str(lang): str(text) for lang, text in texts.items()}


def _arrival(plain: Mapping[str, Any]) -> Arrival:
    known = {field.name for field in fields(SamplingParams)}
    params = {name: value for name, value in plain.items() if name in known}
    own = {name: value for name, value in plain.items() if name not in known}
    for name in own:
        if name not in _OWN_KEYS:
            settings = ", ".join((*_OWN_KEYS, *sorted(known)))
            raise WorkloadError("scenario_key", name=name, known=settings)
    if not isinstance(own.get("prompt"), str):
        raise WorkloadError("scenario_prompt")
    if "at_step" in own:
        check_number("at_step", own["at_step"], 1, _MAX_STEP)
    if "priority" in own:
        check_number("priority", own["priority"], -_MAX_STEP, _MAX_STEP)
    if "chat" in own:
        check_switch("chat", own["chat"])
    if isinstance(params.get("stop"), list):
        params["stop"] = tuple(params["stop"])
    return Arrival(params=SamplingParams(**params), **own)


def play(engine: Engine, arrivals: Sequence[Joining]) -> Iterator[StepRecord]:
    """Runs arrivals on an engine, each before its step; an idle engine skips ahead to the next."""
    waiting = sorted(arrivals, key=lambda arrival: arrival.at_step)
    while waiting or engine.has_work:
        while waiting and (waiting[0].at_step <= engine.num_steps + 1 or not engine.has_work):
            waiting.pop(0).join(engine)
        if engine.has_work:
            yield engine.step()
