"""The page without a browser: what it paints, in which language, and what a run changes."""

from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app import models, state
from app.live import Limits, Registry
from app.memory_panel import card
from app.models import Backend, ModelHolder, Tell
from app.shown import recorded
from app.state import registry
from core.errors import ModelError
from core.text import LANGUAGES, sentence
from core.workload.scenario import find_scenario, scenario_names
from tests.app.fakes import FakeBackend

MAIN = Path(__file__).parents[2] / "app" / "main.py"


@pytest.fixture(autouse=True)
def own_process_state() -> Iterator[None]:
    before = models.shared(), registry()
    state.install_registry(Registry())
    holder = ModelHolder(lambda tell: FakeBackend())
    holder.start()
    holder.wait(20)
    models.install(holder)
    yield
    models.install(before[0])
    state.install_registry(before[1])


def painted(lang: str | None = None) -> AppTest:
    page = AppTest.from_file(str(MAIN), default_timeout=30)
    if lang:
        page.query_params["lang"] = lang
    page.run()
    assert not page.exception
    return page


def html(page: AppTest) -> str:
    return "\n".join(str(item.proto.body) for item in page.get("html"))


def finish(page: AppTest) -> AppTest:
    """The page after its live run is over."""
    run = registry().session(page.session_state["gbx_token"]).run
    assert run is not None
    run.wait(20)
    page.run()
    assert not page.exception
    return page


def press(page: AppTest, key: str) -> AppTest:
    page.button(key=key).click().run()
    assert not page.exception
    return page


def field(page: AppTest, name: str) -> str:
    state = page.session_state
    return f"gbx_{name}_{state['gbx_version'] if 'gbx_version' in state else 0}"  # noqa: SIM401


def test_the_page_opens_with_a_recorded_run() -> None:
    page = painted()
    assert "recorded run" in html(page)
    assert len(page.get("bidi_component")) == 1
    assert 'data-model="ready"' in html(page)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_word_follows_the_language_and_no_key_does(lang: str) -> None:
    page = painted(lang)
    assert page.button(key="gbx_run").label == sentence("app.run", lang)
    for name in ("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens"):
        widget = page.number_input(key=field(page, name))
        assert widget.label == sentence(f"app.{name}", lang)
        assert widget.help == sentence(f"app.{name}_help", lang)


def test_an_unknown_language_is_english() -> None:
    assert painted("tlh").button(key="gbx_run").label == "Run live"


def test_a_scenario_runs_live_to_its_end() -> None:
    page = finish(press(painted(), "gbx_run"))
    assert "live run" in html(page) and "Fake" in html(page)
    assert registry().session(page.session_state["gbx_token"]).run.progress.state == "done"  # type: ignore[union-attr]


def test_own_prompts_run_and_are_shown_as_plain_text() -> None:
    page = painted()
    page.segmented_control(key="gbx_source").set_value("own").run()
    page.text_area(key="gbx_prompts").set_value("<img src=x onerror=alert(1)>\n你好")
    page = finish(press(page, "gbx_run"))
    run = registry().session(page.session_state["gbx_token"]).run
    assert run is not None and run.shown is not None
    assert run.shown.trace.header.title["zh"] == sentence("app.own_title", "zh")
    assert "<img" not in html(page)


def test_an_empty_prompt_is_one_message() -> None:
    page = painted()
    page.segmented_control(key="gbx_source").set_value("own").run()
    page = press(page, "gbx_run")
    assert html(page).count('role="alert"') == 1
    assert sentence("error.empty_prompt", "en") in html(page)
    assert 'role="alert"' not in html(page.run())


def test_settings_reach_the_engine_and_reset_takes_them_back() -> None:
    page = painted()
    original = page.number_input(key=field(page, "block_size")).value
    page.number_input(key=field(page, "block_size")).set_value(7)
    page.number_input(key=field(page, "max_tokens")).set_value(3)
    page = finish(press(page, "gbx_run"))
    run = registry().session(page.session_state["gbx_token"]).run
    assert run is not None and run.shown is not None
    assert run.shown.trace.header.config["block_size"] == 7
    page = press(page, "gbx_reset")
    assert page.number_input(key=field(page, "block_size")).value == original
    assert page.number_input(key=field(page, "max_tokens")).value is None


@pytest.mark.parametrize("lang", LANGUAGES)
def test_an_fp8_cache_can_be_chosen_and_the_memory_card_says_that_it_rounds(lang: str) -> None:
    page = painted(lang)
    chosen = page.selectbox(key=field(page, "kv_cache_dtype"))
    assert sentence("app.kv_cache_dtype_help", lang) == chosen.help
    chosen.set_value("fp8")
    page = finish(press(page, "gbx_run"))
    run = registry().session(page.session_state["gbx_token"]).run
    assert run is not None and run.shown is not None
    trace = run.shown.trace
    assert trace.header.config["kv_cache_dtype"] == "fp8"
    note = sentence("app.kv_fp8_note", lang)
    memory = {"kv_pool": 5, "weights": 20, "process": 100}
    assert note in unescape(card(trace, 1, memory, state.say(lang)))
    assert note not in card(recorded("01_tour").trace, 1, memory, state.say(lang))


def test_the_scenarios_box_says_what_was_opened_and_leads_back(tmp_path: Path) -> None:
    """A file's name is text; a live run afterwards takes the settings of the box's scenario."""
    recorded("03_arrivals").trace.save(tmp_path / "trace.jsonl.gz")
    page = painted()
    page.file_uploader(key="gbx_file").upload(
        "<b>mine.jsonl.gz", (tmp_path / "trace.jsonl.gz").read_bytes(), "application/gzip"
    )
    page.run()
    assert not page.exception
    box = page.selectbox(key="gbx_scenario")
    assert box.options[0] == "Opened: <b>mine.jsonl.gz"
    assert box.options[box.index or 0] == box.options[0]
    assert "<b>mine" not in html(page) and "opened file" in html(page)
    wanted = find_scenario("03_arrivals").config.block_size
    assert page.number_input(key=field(page, "block_size")).value == wanted
    page = finish(press(page, "gbx_run"))
    box = page.selectbox(key="gbx_scenario")
    assert box.value == "03_arrivals" and "Opened" not in " ".join(box.options)


def test_a_scenario_chosen_beside_an_opened_run_is_shown(tmp_path: Path) -> None:
    recorded("03_arrivals").trace.save(tmp_path / "trace.jsonl.gz")
    page = painted()
    data = (tmp_path / "trace.jsonl.gz").read_bytes()
    page.file_uploader(key="gbx_file").upload("mine.jsonl.gz", data, "application/gzip").run()
    page.selectbox(key="gbx_scenario").select_index(3).run()
    assert not page.exception
    box = page.selectbox(key="gbx_scenario")
    assert box.value == "03_arrivals" and len(box.options) == len(scenario_names())
    assert "recorded run" in html(page)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_warning_of_a_cut_file_is_in_the_readers_language(lang: str, tmp_path: Path) -> None:
    recorded("02_one_prompt").trace.save(tmp_path / "trace.jsonl.gz")
    data = (tmp_path / "trace.jsonl.gz").read_bytes()
    page = painted(lang)
    page.file_uploader(key="gbx_file").upload("cut.gz", data[:-900], "application/gzip").run()
    detail = sentence("trace.damage.gzip", lang)
    assert html(page).count('role="alert"') == 1 and detail in html(page)


def test_another_scenario_brings_its_own_settings_and_recording() -> None:
    page = painted()
    page.selectbox(key="gbx_scenario").select_index(6).run()
    assert not page.exception
    assert "The pool is too small" in html(page)
    assert page.number_input(key=field(page, "block_size")).value == 4


def test_beams_in_v1_are_refused_with_the_fix() -> None:
    page = painted()
    page.selectbox(key=field(page, "semantics")).set_value("v1")
    page.number_input(key=field(page, "beam_width")).set_value(4)
    page.number_input(key=field(page, "n")).set_value(1)
    page = press(page, "gbx_run")
    assert "semantics=paper" in html(page) and html(page).count('role="alert"') == 1


def test_a_model_that_cannot_load_leaves_the_page_usable() -> None:
    def refuse(tell: Tell) -> Backend:
        raise ModelError("model_no_default")

    holder = ModelHolder(refuse)
    holder.start()
    holder.wait(20)
    models.install(holder)
    page = painted()
    assert 'data-model="failed"' in html(page) and page.button(key="gbx_run").disabled
    assert len(page.get("bidi_component")) == 1


def test_until_the_model_is_ready_run_is_disabled_and_says_why() -> None:
    models.install(ModelHolder(lambda tell: FakeBackend()))
    page = painted()
    assert page.button(key="gbx_run").disabled
    assert sentence("app.not_ready", "en") in [item.value for item in page.caption]


def test_a_full_server_is_one_message() -> None:
    state.install_registry(Registry(Limits(sessions=0)))
    page = painted()
    assert html(page).count('role="alert"') == 1 and not page.get("bidi_component")


def test_two_visitors_see_their_own_runs() -> None:
    first, second = painted(), painted("zh")
    first = finish(press(first, "gbx_run"))
    second.run()
    assert first.session_state["gbx_token"] != second.session_state["gbx_token"]
    assert "live run" in html(first) and sentence("app.from_live", "zh") not in html(second)


def test_charts_are_drawn_only_when_asked_for() -> None:
    page = painted()
    assert not page.get("plotly_chart")
    page.toggle(key="gbx_charts").set_value(True).run()
    assert not page.exception and len(page.get("plotly_chart")) == 5
