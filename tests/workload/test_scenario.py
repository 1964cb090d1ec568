"""Scenario files: what is wrong is named with its place; arrivals come when they should."""

from pathlib import Path

import pytest

from core.config import EngineConfig
from core.errors import WorkloadError
from core.request import SamplingParams
from core.text import Speaks
from core.workload.scenario import Arrival, find_scenario, load_scenario, play, scenario_names
from tests.builders import make_engine

_GOOD = """
title = {en = "Two", zh = "两个"}
about = {en = "Two requests", zh = "两个请求"}
[engine]
block_size = 4
num_blocks = 20
[[request]]
prompt = "hello"
max_tokens = 3
[[request]]
prompt = "world"
at_step = 2
priority = 1
stop = ["x"]
"""


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "mine.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_good_file_becomes_settings_and_arrivals(tmp_path: Path) -> None:
    scenario = load_scenario(write(tmp_path, _GOOD))
    assert scenario.name == "mine"
    assert scenario.config == EngineConfig(block_size=4, num_blocks=20)
    assert scenario.arrivals == (
        Arrival("hello", SamplingParams(max_tokens=3)),
        Arrival("world", SamplingParams(stop=("x",)), at_step=2, priority=1),
    )
    assert find_scenario(str(tmp_path / "mine.toml")) == scenario
    changed = scenario.with_changes({"block_size": 8}, {"max_tokens": 9})
    assert changed.config.block_size == 8
    assert [arrival.params.max_tokens for arrival in changed.arrivals] == [9, 9]


_BAD: dict[str, tuple[str, str, str]] = {
    # what is replaced, with what, and the place that the sentence must name
    "toml": ("[engine]", "[engine", "TOML"),
    "engine_value": ("block_size = 4", "block_size = 0", "block_size"),
    "engine_type": ("block_size = 4", 'block_size = "x"', "block_size"),
    "engine_key": ("block_size = 4", "blok_size = 4", "blok_size"),
    "request_key": ("max_tokens = 3", "max_tokns = 3", "max_tokns"),
    "request_value": ("max_tokens = 3", "max_tokens = 0", "request 1"),
    "request_type": ("max_tokens = 3", 'max_tokens = "3"', "request 1"),
    "no_prompt": ('prompt = "world"', "", "request 2"),
    "prompt_type": ('prompt = "world"', "prompt = 3", "request 2"),
    "no_title": ('title = {en = "Two", zh = "两个"}', "", "title"),
    "title_type": ('title = {en = "Two", zh = "两个"}', 'title = "Two"', "title"),
    "no_about": ('about = {en = "Two requests", zh = "两个请求"}', "", "about"),
    "engine_is_a_number": ("[engine]\nblock_size = 4\nnum_blocks = 20", "engine = 4", "engine"),
    "unknown_table": ("[engine]", "[engnie]", "engnie"),
    "one_request_table": (
        _GOOD[_GOOD.index("[[request]]") :],
        '[request]\nprompt = "a"',
        "request",
    ),
    "request_is_a_list_of_numbers": (_GOOD[_GOOD.index("[engine]") :], "", "request"),
    "at_step_type": ("at_step = 2", 'at_step = "two"', "request 2"),
    "at_step_value": ("at_step = 2", "at_step = -1", "request 2"),
    "priority_type": ("priority = 1", 'priority = "high"', "request 2"),
    "stop_type": ('stop = ["x"]', "stop = [1]", "request 2"),
    "stop_is_one_text": ('stop = ["x"]', 'stop = "xyz"', "request 2"),
    "half_a_token": ("max_tokens = 3", "max_tokens = 2.5", "request 1"),
    "true_tokens": ("max_tokens = 3", "max_tokens = true", "request 1"),
    "half_true": ("block_size = 4", 'block_size = 4\nchunked_prefill = "no"', "chunked_prefill"),
    "a_float_size": ("block_size = 4", "block_size = 4.0", "block_size"),
}


@pytest.mark.parametrize("name", _BAD)
def test_a_fault_is_named_with_its_place(name: str, tmp_path: Path) -> None:
    old, new, place = _BAD[name]
    assert old in _GOOD
    text = _GOOD.replace(old, new, 1)
    if name == "request_is_a_list_of_numbers":
        text = "request = []\n" + text.replace('title = {en = "Two", zh = "两个"}', "")
        place = "title"
    path = write(tmp_path, text)
    with pytest.raises(WorkloadError) as caught:
        load_scenario(path)
    for lang in ("en", "zh"):
        text = caught.value.sentence(lang)
        assert str(path) in text and place in text
        assert ".." not in text.replace("...", "") and "{" not in text
    if name != "title_type":
        assert not isinstance(caught.value.values["detail"], TypeError)


@pytest.mark.parametrize("name", [name for name in _BAD if name != "toml"])
def test_what_is_wrong_is_said_in_the_readers_language_throughout(
    name: str, tmp_path: Path
) -> None:
    old, new, _ = _BAD[name]
    path = write(tmp_path, _GOOD.replace(old, new, 1))
    with pytest.raises(WorkloadError) as caught:
        load_scenario(path)
    detail = caught.value.values["detail"]
    assert isinstance(detail, Speaks), repr(detail)
    chinese, english = caught.value.sentence("zh"), detail.sentence("en").rstrip(".")
    assert english in caught.value.sentence("en")
    assert english not in chinese and detail.sentence("zh").rstrip("。") in chinese


def test_a_file_that_can_not_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(WorkloadError):
            load_scenario(path)
    with pytest.raises(WorkloadError, match="TOML"):
        load_scenario(write(tmp_path, b"\xff\xfe"))


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(WorkloadError) as caught:
        find_scenario("no such")
    assert caught.value.code == "no_scenario"


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_that_comes_along_loads(name: str) -> None:
    scenario = load_scenario(Path(__file__).parents[2] / "assets" / "scenarios" / f"{name}.toml")
    assert scenario.arrivals
    assert {"en", "zh"} <= scenario.title.keys() & scenario.about.keys()


def _arrival(prompt: str, at_step: int, max_tokens: int = 2) -> Arrival:
    return Arrival(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True), at_step)


def test_arrivals_come_before_their_step_in_the_order_of_the_file() -> None:
    engine = make_engine()
    arrivals = (_arrival("late", 3), _arrival("first", 1, 5), _arrival("second", 1, 5))
    admitted = {
        record.step: [request.prompt for request in record.output.admitted]
        for record in play(engine, arrivals)
    }
    assert {step: who for step, who in admitted.items() if who} == {
        1: ["first", "second"],
        3: ["late"],
    }


def test_an_idle_engine_skips_ahead_to_the_next_arrival() -> None:
    engine = make_engine()
    records = list(play(engine, (_arrival("one", 1), _arrival("two", 100))))
    assert [record.step for record in records] == [1, 2, 3, 4]
    assert [r.finish_reason for record in records for r in record.finished] == ["length"] * 2


def test_a_refused_arrival_does_not_stop_the_others() -> None:
    engine = make_engine()
    list(play(engine, (_arrival("x" * 200, 1), _arrival("fine", 5))))
    assert [output.error != "" for output in engine.outputs()] == [True, False]
