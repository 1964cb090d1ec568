"""The panel's prompts."""

import doctest

import app.panel
from app.panel import arrivals_of
from core.request import SamplingParams


def test_lines_become_requests_and_an_at_sign_sets_the_step() -> None:
    got = arrivals_of("The sea is\n\n  \n@12 大海是\n@ not a step\n@0 early", SamplingParams())
    assert [(item.at_step, item.prompt) for item in got] == [
        (1, "The sea is"),
        (12, "大海是"),
        (1, "@ not a step"),
        (1, "early"),
    ]


def test_the_examples_in_its_docstrings_hold() -> None:
    assert doctest.testmod(app.panel).failed == 0
