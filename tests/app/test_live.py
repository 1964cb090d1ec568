"""Live runs: apart from each other, within caps, stopped, failing, and dropped when idle."""

from typing import Any

import pytest

from app.answers import answers
from app.live import Limits, Plan, Registry, Run
from core.errors import GlassblockError, LimitError, ModelError, RequestError
from core.trace import events as ev
from core.trace.delta_log import decode
from core.trace.verify import verify
from tests.app.fakes import FakeBackend, HeldRunner, make_plan
from tests.builders import FakeRunner, make_config


def ended(run: Run) -> Run:
    run.wait(20)
    assert not run.is_running
    return run


def long_plan() -> Plan:
    return make_plan("hello", max_tokens=500, config=make_config(num_blocks=200))


def refusal(registry: Registry, *prompts: str, **changes: Any) -> str:
    with pytest.raises(GlassblockError) as caught:
        registry.start("me", make_plan(*prompts, **changes), FakeBackend())
    assert caught.value.sentence("en") != caught.value.sentence("zh")
    assert "{" not in caught.value.sentence("en") + caught.value.sentence("zh")
    return caught.value.code


def test_a_run_ends_with_a_sound_trace_and_its_log() -> None:
    run = ended(Registry().start("me", make_plan("hello", "you"), FakeBackend()))
    shown = run.shown
    assert shown is not None and not shown.is_live and run.fault is None
    assert run.progress.state == "done" and run.progress.tokens == 10
    assert decode(shown.log)[1] == list(shown.trace.events)
    assert verify(shown.trace).ok


def test_the_log_of_a_growing_run_is_a_prefix_of_the_next() -> None:
    runner = HeldRunner()
    registry = Registry()
    run = registry.start("me", make_plan("hello", max_tokens=8), FakeBackend(runner))
    logs = []
    while run.is_running:
        runner.gate.set()
        if (shown := run.shown) is not None:
            logs.append(shown.log)
    assert run.shown is not None
    assert all(run.shown.log.startswith(log) for log in logs)


def test_two_visitors_at_once_do_not_mix() -> None:
    registry = Registry()
    runs = [registry.start(name, make_plan(name * 3), FakeBackend()) for name in ("ab", "xy")]
    texts = []
    for run in runs:
        shown = ended(run).shown
        assert shown is not None
        arrived = [e for e in shown.trace.events if isinstance(e, ev.RequestArrived)]
        texts.append([e.prompt_token_ids for e in arrived])
    assert len(texts[0]) == len(texts[1]) == 1 and texts[0] != texts[1]
    assert registry.session("ab").run is runs[0] and registry.session("xy").run is runs[1]


def test_stop_ends_a_run_and_keeps_what_it_recorded() -> None:
    runner = HeldRunner()
    run = Registry().start("me", long_plan(), FakeBackend(runner))
    run.stop()
    runner.gate.set()
    assert ended(run).progress.state == "stopped"
    assert run.progress.steps < 500 and run.fault is None
    assert run.shown is not None and len(run.shown.trace.events) > 0


def test_a_new_run_of_the_same_visitor_replaces_the_old_one() -> None:
    runner = HeldRunner()
    registry = Registry(Limits(engines=1))
    first = registry.start("me", long_plan(), FakeBackend(runner))
    runner.gate.set()
    second = registry.start("me", make_plan("hello"), FakeBackend())
    assert not first.is_running
    assert ended(second).progress.state == "done"


def test_no_more_engines_run_than_the_cap_allows() -> None:
    runner = HeldRunner()
    registry = Registry(Limits(engines=1))
    held = registry.start("first", make_plan("hello"), FakeBackend(runner))
    assert refusal(registry, "hello") == "engines_busy"
    runner.gate.set()
    ended(held)
    assert ended(registry.start("me", make_plan("hello"), FakeBackend())).progress.state == "done"


@pytest.mark.parametrize(
    ("limits", "prompts", "changes", "code"),
    [
        (Limits(), (), {}, "empty_prompt"),
        (Limits(), ("ok", "  "), {}, "empty_prompt"),
        (Limits(prompts=2), ("a", "b", "c"), {}, "prompts_many"),
        (Limits(characters=10), ("x" * 11,), {}, "prompt_long"),
        (Limits(pool_bytes=1 << 16), ("hello",), {}, "pool_large"),
        (Limits(), ("hello",), {"beam_width": 2}, "beams_need_paper"),
    ],
)
def test_what_is_too_much_is_refused_in_both_languages(
    limits: Limits, prompts: tuple[str, ...], changes: dict[str, Any], code: str
) -> None:
    registry = Registry(limits)
    assert refusal(registry, *prompts, **changes) == code
    assert registry.session("me").run is None


@pytest.mark.parametrize(
    ("changes", "code"), [({"steps": 3}, "run_steps"), ({"tokens": 4}, "run_tokens")]
)
def test_a_run_past_its_length_is_stopped_with_one_sentence(
    changes: dict[str, int], code: str
) -> None:
    registry = Registry(Limits(**changes))
    run = ended(registry.start("me", make_plan("hello", max_tokens=40), FakeBackend()))
    assert run.progress.state == "stopped"
    assert isinstance(run.fault, LimitError) and run.fault.code == code
    assert run.progress.steps <= 5


def test_a_failing_forward_ends_its_request_but_not_the_run() -> None:
    plan = make_plan("hello", "world", config=make_config(max_num_batched_tokens=5))
    run = ended(Registry().start("me", plan, FakeBackend(FakeRunner(fail_at={1}))))
    assert run.progress.state == "done" and run.fault is None and run.shown is not None
    failed, fine = answers(run.shown.trace.events)
    assert "out of memory" in failed.error and failed.lines[0].tokens == 0
    assert fine.lines[0].tokens == 5 and fine.error == ""


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (ValueError("boom\nTraceback"), "run_failed"),
        (MemoryError(), "run_failed"),
        (ModelError("model_no_default"), "model_no_default"),
    ],
)
def test_a_run_that_raises_says_one_line(fault: Exception, code: str) -> None:
    run = ended(Registry().start("me", make_plan("hello"), FakeBackend(fault=fault)))
    assert run.progress.state == "failed" and run.shown is None
    assert run.fault is not None and run.fault.code == code
    assert "\n" not in run.fault.sentence() and "Traceback" not in run.fault.sentence()


def test_a_request_that_never_fits_is_refused_and_the_others_run() -> None:
    run = ended(Registry().start("me", make_plan("x" * 200, "hello"), FakeBackend()))
    assert run.shown is not None
    refused, fine = answers(run.shown.trace.events)
    assert refused.refusal is not None and refused.refusal.code == "never_fits"
    assert fine.lines[0].tokens == 5


def test_what_an_idle_visitor_holds_is_dropped_and_said_once() -> None:
    now = [0.0]
    registry = Registry(Limits(idle_seconds=60), clock=lambda: now[0])
    runner = HeldRunner()
    idle = registry.start("idle", long_plan(), FakeBackend(runner))
    now[0] = 50
    registry.session("awake")
    now[0] = 70
    assert registry.sweep() == 1
    runner.gate.set()
    assert ended(idle).progress.state == "stopped"
    assert registry.was_dropped("idle") and not registry.was_dropped("idle")
    assert not registry.was_dropped("awake")
    assert registry.session("idle").run is None


def test_a_run_that_nobody_looks_at_any_more_is_stopped_and_kept() -> None:
    now = [0.0]
    registry = Registry(Limits(unseen_seconds=100), clock=lambda: now[0])
    runner = HeldRunner()
    run = registry.start("reloaded", long_plan(), FakeBackend(runner))
    now[0] = 99
    registry.sweep()
    now[0] = 101
    assert registry.sweep() == 0, "the visitor is not idle yet"
    runner.gate.set()
    assert ended(run).progress.state == "stopped"
    assert registry.session("reloaded").run is run


def test_reloaded_pages_do_not_keep_engines_from_those_who_wait() -> None:
    now = [0.0]
    registry = Registry(Limits(engines=1), clock=lambda: now[0])
    runner = HeldRunner()
    gone = registry.start("gone", long_plan(), FakeBackend(runner))
    with pytest.raises(LimitError):
        registry.start("new", make_plan("hello"), FakeBackend())
    now[0] = 11
    runner.gate.set()
    assert ended(registry.start("new", make_plan("hello"), FakeBackend())).progress.state == "done"
    assert gone.progress.state == "stopped"


def test_visitors_past_the_cap_are_turned_away_until_others_are_idle() -> None:
    now = [0.0]
    registry = Registry(Limits(sessions=2, idle_seconds=60), clock=lambda: now[0])
    registry.session("a")
    registry.session("b")
    with pytest.raises(LimitError, match="2 visitors"):
        registry.session("c")
    now[0] = 61
    registry.session("c")


def test_an_empty_plan_is_a_request_fault() -> None:
    with pytest.raises(RequestError):
        Registry().start("me", make_plan(), FakeBackend())
