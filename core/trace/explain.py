"""explain: one sentence for an event, in any language.

The sentence's template is `event.<Type>.<reason code>` of the catalogue. Its
values are the event's fields, then the reason's values, and `who`, the display name of the
sequence or request concerned. The player's JavaScript does the same; a test compares the two.
"""

import dataclasses
from collections.abc import Mapping

from core.text import catalogue, fill
from core.trace import events as ev

__all__ = ["explain", "sentence_values"]


def explain(event: ev.Event, labels: Mapping[str, str], lang: str = "en") -> str:
    """One sentence with its values in `**bold**`.

    Args:
        event: what happened.
        labels: display names by sequence and request id (`Snapshot.labels`).
        lang: the reader's language.
    """
    kind = type(event).__name__
    template = catalogue(lang).get(f"event.{kind}.{event.reason.code}", kind)
    return fill(template, sentence_values(event, labels))


def sentence_values(event: ev.Event, labels: Mapping[str, str]) -> dict[str, str]:
    """What a template can name, as text."""
    values: dict[str, str] = {}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if not isinstance(value, (ev.Reason, Mapping)):
            values[field.name] = _text(value)
    for name, value in event.reason.values.items():
        values[name] = labels.get(value, value) if isinstance(value, str) else str(value)
    if isinstance(event, ev.SlotsWritten):
        values["count"] = str(len(event.token_ids))
    for name in ("seq_id", "request_id"):
        if name in values:
            values["who"] = labels.get(values[name], values[name])
            break
    for name in ("parent_id", "child_id"):
        if name in values:
            values[name.removesuffix("_id")] = labels.get(values[name], values[name])
    return values


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)
