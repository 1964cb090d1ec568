"""Synthetic workloads: means come out as asked for, after dropping; the same seed, the same run."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import ConfigError
from core.workload.synthetic import PRESETS, Recipe, fit_lognormal, make, retime


@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_log_normal_means_after_dropping_are_the_given_ones(preset: str, cv: float) -> None:
    recipe = replace(PRESETS[preset], count=20_000, prompt_cv=cv, output_cv=cv, seed=3)
    workload = make(recipe)
    workload.check()
    assert workload.max_total <= 2048
    for lengths, mean in (
        ([r.prompt_tokens for r in workload.requests], recipe.prompt_mean),
        ([r.output_tokens for r in workload.requests], recipe.output_mean),
    ):
        found = sum(lengths) / len(lengths)
        spread = math.sqrt(sum((n - found) ** 2 for n in lengths) / len(lengths))
        assert abs(found - mean) < 4 * spread / math.sqrt(len(lengths)) + 0.1


def test_the_fit_moves_the_means_that_a_cut_would_shorten() -> None:
    recipe = replace(PRESETS["sharegpt"], output_cv=2.0)
    fit = fit_lognormal(recipe)
    whole = math.exp(fit.output[0] + fit.output[1] ** 2 / 2)
    assert fit.kept < 0.96 and whole > 1.3 * recipe.output_mean


@pytest.mark.parametrize("arrivals", ["poisson", "bursty", "fixed", "at_once"])
@pytest.mark.parametrize("lengths", ["fixed", "uniform", "lognormal"])
def test_arrivals_and_lengths_are_as_the_recipe_says(arrivals: Any, lengths: Any) -> None:
    recipe = Recipe(count=20_000, rate=5, arrivals=arrivals, lengths=lengths, seed=1)
    workload = make(recipe)
    workload.check()
    assert workload == make(recipe) != make(replace(recipe, seed=2, count=19_999))
    assert workload.mean_output == pytest.approx(337.99, rel=0.02)
    assert workload.mean_prompt == pytest.approx(161.31, rel=0.02)
    assert workload.rate == pytest.approx(0 if arrivals == "at_once" else 5, rel=0.06)


def test_bursts_have_a_larger_spread_of_gaps_than_poisson() -> None:
    def spread(arrivals: Any) -> float:
        times = [r.arrival for r in make(Recipe(count=20_000, arrivals=arrivals)).requests]
        gaps = [b - a for a, b in pairwise(times)]
        mean = sum(gaps) / len(gaps)
        return math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean

    assert spread("fixed") < 0.01
    assert spread("poisson") == pytest.approx(1, abs=0.05)
    assert spread("bursty") > 2


def test_groups_share_prefixes_that_any_block_size_can_use() -> None:
    workload = make(Recipe(count=500, shared_prefix=341, groups=3, prompt_mean=400))
    workload.check()
    assert len({r.prefix for r in workload.requests}) == 3
    assert all(r.prompt_tokens > 341 for r in workload.requests)
    assert all(len(r.prefix) * workload.prefix_unit == 341 for r in workload.requests)


def test_retimed_requests_keep_their_lengths() -> None:
    once = make(Recipe(count=50, arrivals="at_once"))
    later = retime(once, 4.0, "fixed")
    assert [r.arrival for r in later.requests] == [n / 4 for n in range(50)]
    assert [replace(r, arrival=0.0) for r in later.requests] == list(once.requests)
    assert ("retimed", 50) in later.notes
    with pytest.raises(ConfigError):
        retime(once, 0.0)
    with pytest.raises(ConfigError):
        retime(once, 1.0, "never")


@pytest.mark.parametrize(
    "changes",
    [
        {"count": 0},
        {"rate": 0},
        {"rate": math.nan},
        {"arrivals": "weekly"},
        {"lengths": "normal"},
        {"prompt_mean": 0.5},
        {"output_cv": 0},
        {"seed": -1},
        {"count": True},
        {"prompt_mean": 1500, "output_mean": 1000},
        {"lengths": "uniform", "prompt_mean": 800, "output_mean": 800},
        {"shared_prefix": 2000},
    ],
)
def test_a_recipe_that_cannot_work_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Recipe(**changes)
    assert "{" not in str(caught.value) + caught.value.sentence("zh")


def test_means_close_to_the_limit_are_refused_or_met() -> None:
    with pytest.raises(ConfigError, match="can't be had"):
        fit_lognormal(Recipe(prompt_mean=1000, output_mean=1040, prompt_cv=3, output_cv=3))


@settings(max_examples=60, deadline=None)
@given(
    prompt=st.floats(1, 600),
    output=st.floats(1, 600),
    cvs=st.tuples(st.floats(0.05, 3), st.floats(0.05, 3)),
)
def test_any_feasible_recipe_is_fitted(
    prompt: float, output: float, cvs: tuple[float, float]
) -> None:
    recipe = Recipe(
        count=20, prompt_mean=prompt, output_mean=output, prompt_cv=cvs[0], output_cv=cvs[1]
    )
    try:
        fit = fit_lognormal(recipe)
    except ConfigError:
        assert prompt + output > 300  # only a heavy cut makes a fit fail
        return
    assert 0.02 <= fit.kept <= 1
    make(recipe).check()
