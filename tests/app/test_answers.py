"""Texts of a run, from its events alone."""

from app.answers import answers
from core.request import SamplingParams
from tests.builders import make_engine


def test_samples_share_a_prompt_and_have_their_own_text() -> None:
    engine = make_engine(semantics="paper")
    engine.add_request("hello", SamplingParams(n=2, max_tokens=4, ignore_eos=True))
    list(engine.run())
    (answer,) = answers(engine.events)
    expected = [completion.text for completion in engine.outputs()[0].outputs]
    assert sorted(line.text for line in answer.lines) == sorted(expected)
    assert [line.state for line in answer.lines] == ["length", "length"]
    assert all(line.tokens == 4 for line in answer.lines)


def test_beams_that_lost_are_left_out() -> None:
    engine = make_engine(semantics="paper", num_blocks=60)
    engine.add_request("hello", SamplingParams(beam_width=3, max_tokens=6, ignore_eos=True))
    list(engine.run())
    (answer,) = answers(engine.events)
    assert 1 <= len(answer.lines) <= 3 and all(line.text for line in answer.lines)


def test_a_run_in_the_middle_has_open_lines() -> None:
    engine = make_engine()
    engine.add_request("hello", SamplingParams(max_tokens=9, ignore_eos=True))
    engine.step()
    (answer,) = answers(engine.events)
    assert answer.lines[0].state == "" and answer.lines[0].tokens == 1
