"""What a run of a comparison is called: a system's run of a workload, or a fork of something.

It owns these names in every language, because they go into traces, which outlive a visit. It does
not know Streamlit's state, nor how a fork is run.
"""

from collections.abc import Mapping
from functools import reduce
from typing import Any, Literal

from app.comparing import Lane
from app.shown import recorded_names
from app.state import Say, say
from core.config import EngineConfig
from core.text import LANGUAGES
from core.workload.fork import Changes, ForkPlan

__all__ = ["fork_title", "kind_of_past", "lane_name"]

_WORDS = ("allocator", "reserve", "placement", "batching", "prefix_caching", "policy")


def lane_name(lane: Lane, *, of_past: bool = False) -> dict[str, str]:
    """What a lane is called outside of its comparison, by language.

    Args:
        lane: the run.
        of_past: of a fork the name of the run that it goes back to, not its own.
    """
    if of_past and lane.origin:
        return dict(lane.origin)
    return {lang: _lane_name(lane, lang, say(lang)) for lang in LANGUAGES}


def _lane_name(lane: Lane, lang: str, speak: Say) -> str:
    titles = lane.trace.header.title
    title = str(titles.get(lang) or titles.get("en") or speak("untitled"))
    if lane.name in ("run", "fork"):  # its title says all there is to say
        return title
    return f"{title} · {speak(f'cmp.system_{lane.name}')}"


def kind_of_past(lane: Lane) -> Literal["recorded", "file", "live"]:
    """Where the past of a fork comes from."""
    if lane.key.startswith("recorded-") or lane.key in recorded_names():
        return "recorded"
    return "file" if lane.key.startswith("file-") else "live"


def fork_title(source: Lane, plan: ForkPlan, changes: Changes) -> dict[str, str]:
    """Of what, after which step, and with what changed, by language."""
    past = lane_name(source, of_past=True)
    key = "cmp.fork_name_again" if source.origin else "cmp.fork_name"
    return {
        lang: say(lang)(
            key, what=past[lang], step=plan.first_step,
            changes=_changes(source, plan.config, changes, say(lang)),
        )
        for lang in LANGUAGES
    }  # fmt: skip


def _changes(source: Lane, config: EngineConfig, changes: Changes, speak: Say) -> str:
    before, after = _settings(source.config, speak), _settings(config, speak)
    parts = [
        speak("cmp.fork_change", name=speak(f"cmp.{name}"), before=before[name], after=value)
        if name in before
        else speak("cmp.fork_change_new", name=speak(f"cmp.{name}"), after=value)
        for name, value in after.items()
        if before.get(name) != value
    ]
    labels = {r: label for r, label in source.trace.snapshot().labels().items() if r}
    if changes.drop:
        names = ", ".join(sorted(labels.get(r, r) for r in changes.drop))
        parts.append(speak("cmp.fork_change_drop", labels=names))
    for request_id, step in changes.move.items():
        label = labels.get(request_id, request_id)
        parts.append(speak("cmp.fork_change_move", label=label, step=step))
    if changes.add:
        parts.append(speak("cmp.fork_change_add", n=len(changes.add)))
    if not parts:
        return speak("cmp.fork_change_none")
    return reduce(lambda one, two: speak("cmp.fork_change_two", one=one, two=two), parts)


def _settings(config: EngineConfig, speak: Say) -> Mapping[str, str]:
    """The settings that a fork can change, in words; those that mean nothing are left out."""
    sizes: dict[str, Any] = {
        "slots": f"{config.usable_slots:,}",
        "block_size": None if config.is_contiguous else config.block_size,
        "max_num_seqs": config.max_num_seqs,
        "max_model_len": config.max_model_len,
        "max_num_batched_tokens": config.max_num_batched_tokens,
    }
    values = {name: getattr(config, name) for name in _WORDS}
    values["prefix_caching"] = None if config.is_contiguous else config.caching
    if not config.is_contiguous:
        values["reserve"] = values["placement"] = None
    words = {
        name: speak(f"cmp.{name}_{value}".lower())
        for name, value in values.items()
        if value is not None
    }
    return {name: str(size) for name, size in sizes.items() if size is not None} | words
