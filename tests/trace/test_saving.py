"""Where a trace may be saved: a story of a run that replaced a device by a file."""

import json
import os
from pathlib import Path

import pytest

from core.errors import TraceError
from core.request import SamplingParams
from core.trace.trace import Trace, check_writable, load_trace
from tests.builders import make_engine


def _trace() -> Trace:
    engine = make_engine()
    engine.add_request([1, 2, 3, 4, 5], SamplingParams(max_tokens=4))
    for _ in engine.run():
        pass
    return engine.trace()


def test_a_pipe_is_refused_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(TraceError, match="it is no file") as told:
        _trace().save(pipe)
    assert str(told.value).count("can't be written") == 1
    assert pipe.is_fifo()


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target.jsonl", tmp_path / "link.jsonl"
    target.write_text("old")
    link.symlink_to(target)
    _trace().save(link)
    assert link.is_symlink()
    assert load_trace(target).num_steps == _trace().num_steps


@pytest.mark.parametrize("name", ["no/such/folder/t.jsonl", "x" * 300, "a\0b", "."])
def test_a_place_that_can_not_take_a_trace_is_told_before_the_run(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(TraceError, match="can't be written"):
        check_writable(tmp_path / name)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("config", "semantics"), "zz"),
        (("config", "num_blocks"), "9"),
        (("config", "surprise"), 1),
        (("config", "policy"), None),
    ],
)
def test_settings_that_no_engine_has_are_refused(
    tmp_path: Path, place: tuple[str, str], value: object
) -> None:
    path = tmp_path / "t.jsonl"
    _trace().save(path)
    header, *rest = path.read_text().splitlines()
    plain = json.loads(header)
    plain["glassblock"][place[0]][place[1]] = value
    path.write_text("\n".join([json.dumps(plain), *rest]))
    with pytest.raises(TraceError, match="no usable configuration"):
        load_trace(path)


@pytest.mark.parametrize("change", [{"step": 9_000_000}, {"logprob": float("nan")}])
def test_a_step_that_was_left_out_and_a_number_that_is_none_are_damage(
    tmp_path: Path, change: dict[str, float]
) -> None:
    path = tmp_path / "t.jsonl"
    trace = _trace()
    trace.save(path)
    lines = path.read_text().splitlines()
    place = max(k for k, line in enumerate(lines) if '"TokenSampled"' in line)
    lines[place] = json.dumps(json.loads(lines[place]) | change)
    path.write_text("\n".join(lines))
    loaded = load_trace(path)
    assert loaded.warning
    assert loaded.num_steps == trace.num_steps - 1
