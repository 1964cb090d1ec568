"""The texts of a run, read from its events: prompts, answers, and why a request ended.

Pure: events in, values out.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from core.trace import events as ev

__all__ = ["Answer", "Line", "answers"]


@dataclass(slots=True)
class Line:
    """One sequence's text; `state` is "" while it runs, else its finish reason."""

    label: str
    text: str = ""
    tokens: int = 0
    state: str = ""


@dataclass(slots=True)
class Answer:
    """One request; `refusal` is the reason why it never ran."""

    label: str
    prompt: str
    lines: list[Line] = field(default_factory=list)
    refusal: ev.Reason | None = None
    error: str = ""


def answers(events: Iterable[ev.Event]) -> list[Answer]:
    """Every request's prompt and answers, in order of arrival; beams that lost are left out."""
    reader = _Reader()
    for event in events:
        reader.apply(event)
    return list(reader.requests.values())


class _Reader:
    def __init__(self) -> None:
        self.requests: dict[str, Answer] = {}
        self._lines: dict[str, Line] = {}
        self._owner: dict[str, Answer] = {}

    def apply(self, event: ev.Event) -> None:
        match event:
            case ev.RequestArrived():
                answer = Answer(event.label, "".join(event.texts))
                self.requests[event.request_id] = answer
                self._add(answer, event.request_id, Line(event.label))
            case ev.RequestRejected():
                self.requests[event.request_id] = Answer(event.label, "", [], event.reason)
            case ev.SequenceForked():
                parent = self._lines.get(event.parent_id, Line(""))
                child = Line(event.label, parent.text, parent.tokens)
                if event.request_id in self.requests:
                    self._add(self.requests[event.request_id], event.child_id, child)
            case ev.TokenSampled() if event.seq_id in self._lines:
                line = self._lines[event.seq_id]
                line.text += event.text
                line.tokens += 1
            case ev.SequenceFinished() if event.seq_id in self._lines:
                self._lines[event.seq_id].state = event.finish_reason
            case ev.SequenceDropped() if event.seq_id in self._lines:
                self._owner[event.seq_id].lines.remove(self._lines.pop(event.seq_id))
            case ev.StepFailed():
                for request_id in event.request_ids:
                    if request_id in self.requests:
                        self.requests[request_id].error = event.error
            case _:
                pass

    def _add(self, answer: Answer, seq_id: str, line: Line) -> None:
        answer.lines.append(line)
        self._lines[seq_id], self._owner[seq_id] = line, answer
