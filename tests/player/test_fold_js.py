"""What the player's JavaScript holds at every event is what the Python fold holds."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from core.text import LANGUAGES, catalogue, fill
from core.trace.delta_log import encode
from core.trace.events import RequestScheduled, StepEnded, StepFailed
from core.trace.explain import explain
from core.trace.metrics import breakdown, final_lengths, series
from core.trace.snapshot import Snapshot
from core.trace.trace import Trace
from tests.player.runs import RUNS, header_of

_PARTS = ("tokens", "reserved", "unused", "tail", "cached", "hole", "free")
_SCRIPT = Path(__file__).with_name("fold.mjs")
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def node(*arguments: object) -> list[Any]:
    """The lines that the script prints."""
    command = ["node", str(_SCRIPT), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@cache
def run_named(name: str) -> Trace:
    return RUNS[name]()


def write_log(trace: Trace, folder: Path) -> Path:
    path = folder / "run.gbdl"
    path.write_bytes(encode(header_of(trace), trace.events))
    return path


def by_id(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(k): list(v) if isinstance(v, (tuple, list)) else v for k, v in mapping.items()}


def plain(snapshot: Snapshot, finals: Mapping[str, int]) -> dict[str, Any]:
    """The Python fold with the names and shapes of the JavaScript one."""
    state, counters = snapshot.state(), snapshot.counters
    recent = list(counters.recent)
    waits, parts = snapshot.deferred, breakdown(snapshot, finals)
    return {
        "regions": by_id(state.regions),
        "deferred": waits
        and [waits.request_id, waits.need, waits.free, waits.largest, waits.reason.code],
        "breakdown": [getattr(parts, name) for name in _PARTS],
        "block_tables": by_id(state.block_tables),
        "host_tables": by_id(state.host_tables),
        "ref_counts": by_id(state.ref_counts),
        "free_queue": list(state.free_queue),
        "cached": by_id(state.cached),
        "computed": by_id(state.computed),
        "tokens": by_id(state.tokens),
        "preemptions": by_id(state.preemptions),
        "waiting": list(state.waiting),
        "running": list(state.running),
        "swapped": list(state.swapped),
        "slots": by_id({b: s for b, s in enumerate(snapshot.slots) if s}),
        "host_slots": by_id(snapshot.host_slots),
        "sampled": counters.sampled,
        "copies": counters.copies,
        "evictions": counters.evictions,
        "preemptions_total": counters.preemptions,
        "scheduled": snapshot.scheduled_tokens,
        "num_owned": snapshot.num_owned,
        "num_cached_free": snapshot.num_cached_free,
        "written_slots": snapshot.written_slots,
        "hits_all": [counters.hit, counters.queried],
        "hits_recent": [sum(h for _, h in recent), sum(q for q, _ in recent)],
        "hits_returning": [counters.returning_hit, counters.returning_queried],
    }


def python_states(trace: Trace) -> Iterator[dict[str, Any]]:
    snapshot, finals = Snapshot(trace.header.layout), final_lengths(trace)
    yield plain(snapshot, finals)
    for event in trace.events:
        snapshot.apply(event)
        yield plain(snapshot, finals)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("mode", ["states", "seeks"])
def test_the_javascript_fold_equals_the_python_fold_at_every_event(
    name: str, mode: str, tmp_path: Path
) -> None:
    trace = run_named(name)
    theirs = node(mode, write_log(trace, tmp_path))
    ours = list(python_states(trace))
    assert len(theirs) == len(ours) > 400
    for position, (javascript, python) in enumerate(zip(theirs, ours, strict=True)):
        assert javascript == python, f"after {position} events"


@pytest.mark.parametrize("name", RUNS)
def test_what_a_step_took_back_from_a_victim_counts_nowhere(name: str, tmp_path: Path) -> None:
    """Nor do the fold, the metrics and the timeline's bars differ from what the engine ran."""
    trace = run_named(name)
    snapshot, ended = Snapshot(trace.header.layout), {}
    for event in trace.events:
        snapshot.apply(event)
        if isinstance(event, StepEnded):
            assert snapshot.scheduled_tokens == event.scheduled_tokens
            ended[event.step] = event.scheduled_tokens
    assert [s.prefill_tokens + s.decode_tokens for s in series(trace)] == list(ended.values())
    bars = {step: sum(tokens) for step, *tokens in node("bars", write_log(trace, tmp_path))}
    assert {step: bars[step] for step in ended} == ended


@pytest.mark.parametrize("name", RUNS)
def test_no_part_of_the_memory_is_ever_negative(name: str) -> None:
    """Not even while a victim's blocks are on their way back."""
    for position, state in enumerate(python_states(run_named(name))):
        assert min(state["breakdown"]) >= 0, f"after {position} events: {state['breakdown']}"


@pytest.mark.parametrize("name", ["taken_back", "given_up"])
def test_these_runs_take_tokens_back(name: str) -> None:
    events = list(run_named(name).events)
    asked = sum(event.tokens for event in events if isinstance(event, RequestScheduled))
    ran = sum(event.scheduled_tokens for event in events if isinstance(event, StepEnded))
    assert asked > ran and not any(isinstance(event, StepFailed) for event in events)


def test_a_log_that_grows_in_pieces_folds_as_the_whole(tmp_path: Path) -> None:
    trace = run_named("paper_swap")
    (grown,) = node("grow", write_log(trace, tmp_path))
    assert grown == list(python_states(trace))[-1]


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", RUNS)
def test_the_javascript_sentence_of_each_event_equals_explain(
    name: str, lang: str, tmp_path: Path
) -> None:
    trace = run_named(name)
    templates = tmp_path / "templates.json"
    templates.write_text(json.dumps(dict(catalogue(lang))))
    theirs = node("sentences", write_log(trace, tmp_path), templates)
    labels = trace.snapshot().labels()
    assert theirs == [explain(event, labels, lang) for event in trace.events]


def test_every_value_reads_the_same_in_both_languages_of_code(tmp_path: Path) -> None:
    """All fields of all events, floats and lists included, whatever the catalogue uses."""
    trace = run_named("paper_swap")
    events = list(trace.events)
    templates: dict[str, str] = {}
    for event in events:
        names = [*type(event).__dataclass_fields__, *event.reason.values, "who", "parent", "child"]
        templates[f"event.{type(event).__name__}"] = " ".join(f"{{{name}}}" for name in names)
    path = tmp_path / "templates.json"
    path.write_text(json.dumps(templates))
    theirs = node("sentences", write_log(trace, tmp_path), path)
    from core.trace.explain import sentence_values  # the half of `explain` without a catalogue

    labels = trace.snapshot().labels()
    ours = [
        fill(templates[f"event.{type(e).__name__}"], sentence_values(e, labels)) for e in events
    ]
    for event, javascript, python in zip(events, theirs, ours, strict=True):
        if event.reason.values and f"event.{type(event).__name__}" in templates:
            assert javascript == python


def test_templates_are_filled_alike(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("copies {n|token|tokens} of #{hash#4}", {"n": 1, "hash": "52a7f141"}),
        ("{n|token|tokens}, {n|个|个}", {"n": 12}),
        ("{missing} {missing|a|b} {missing#3}", {}),
        ("{who} wrote **{text#2}**", {"who": "A·1 <b>", "text": "光😀明"}),
        ("{a}{b|x|}{名}", {"a": -3, "b": 1, "名": "$&"}),
        ("{a {b} }{} {a|b} {a#}", {"a": 1, "b": 2}),
        ("{toString} {constructor|a|b}", {}),
    ]
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(cases))
    assert node("fill", path) == [fill(template, values) for template, values in cases]
