"""Synthetic workloads: a recipe of arrivals and lengths, and a seed, make the same requests always.

Long-tailed lengths are log-normal, and a request whose prompt and output exceed `max_total` is
drawn again, as a benchmark drops it. That shortens the means, so the log-normals are fitted until
the means *after* dropping are the given ones. Shared prefixes: each request belongs to one of
`groups` at random, and the first `shared_prefix` tokens of its prompt are its group's; they count
as part of the prompt, which is at least one token longer.

It knows no engine. Every number here is an assumption of the recipe, not a measurement.
"""

import math
import random
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

from core.checks import check_number
from core.errors import ConfigError
from core.workload.requests import Workload, WorkloadRequest

__all__ = ["ARRIVALS", "LENGTHS", "PRESETS", "Fit", "Recipe", "fit_lognormal", "make", "retime"]

Arrivals = Literal["poisson", "bursty", "fixed", "at_once"]
Lengths = Literal["fixed", "uniform", "lognormal"]
ARRIVALS = ("poisson", "bursty", "fixed", "at_once")
LENGTHS = ("fixed", "uniform", "lognormal")

_BURST = 8.0  # requests of a burst, on average
_BURST_GAP = 0.02  # a burst's requests come within this part of the mean time between bursts
_POINTS = 1000  # quantiles of the prompt over which the fit sums
_ROUNDS = 400
_MIN_KEPT = 0.02
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to make a workload.

    Attributes:
        count: requests.
        rate: arrivals a second, on average.
        arrivals: "poisson"; "bursty" (bursts of 8 on average, themselves Poisson); "fixed" gaps;
            or "at_once".
        lengths: "fixed" (all as long as the mean), "uniform" (from 1 to twice the mean, less 1),
            or "lognormal".
        prompt_mean: tokens, after dropping.
        output_mean: tokens, after dropping.
        prompt_cv: log-normal standard deviation in means, before dropping.
        output_cv: likewise.
        max_total: the longest prompt and output together.
        shared_prefix: leading prompt tokens that a group shares; 0 for none.
        groups: how many different shared prefixes there are.
        seed: of everything drawn.

    Raises:
        ConfigError: a value of another kind or out of range, or means that can't be had.
    """

    count: int = 200
    rate: float = 2.0
    arrivals: Arrivals = "poisson"
    lengths: Lengths = "lognormal"
    prompt_mean: float = 161.31
    output_mean: float = 337.99
    prompt_cv: float = 1.0
    output_cv: float = 1.0
    max_total: int = 2048
    shared_prefix: int = 0
    groups: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in (("arrivals", ARRIVALS), ("lengths", LENGTHS)):
            if getattr(self, name) not in choices:
                value, known = getattr(self, name), ", ".join(choices)
                raise ConfigError("choice", name=name, value=value, choices=known)
        for name, (low, high) in _RANGES.items():
            check_number(name, getattr(self, name), low, high)
        longest = 2 if self.lengths == "uniform" else 1
        if longest * (self.prompt_mean + self.output_mean) + self.shared_prefix > self.max_total:
            raise ConfigError(
                "means_too_long",
                prompt=self.prompt_mean,
                output=self.output_mean,
                max_total=self.max_total,
            )


_RANGES: dict[str, tuple[float, float]] = {
    "count": (1, 10_000_000),
    "rate": (1e-6, 1e6),
    "prompt_mean": (1.0, 1e7),
    "output_mean": (1.0, 1e7),
    "prompt_cv": (0.01, 5.0),
    "output_cv": (0.01, 5.0),
    "max_total": (2, 1 << 20),
    "shared_prefix": (0, 1 << 20),
    "groups": (1, 1 << 20),
    "seed": (0, (1 << 63) - 1),
}

# The means are those that the PagedAttention paper reports for the two data sets.
PRESETS: dict[str, Recipe] = {
    "sharegpt": Recipe(),
    "alpaca": Recipe(prompt_mean=19.31, output_mean=58.45, rate=30.0),
}


@dataclass(frozen=True, slots=True)
class Fit:
    """Two log-normals whose means after dropping long pairs are given ones.

    Attributes:
        prompt: (mu, sigma) of the prompt's logarithm.
        output: (mu, sigma) of the output's logarithm.
        kept: share of pairs that aren't dropped.
    """

    prompt: tuple[float, float]
    output: tuple[float, float]
    kept: float


def make(recipe: Recipe, name: str = "synthetic") -> Workload:
    """The workload of a recipe; equal recipes make equal workloads.

    Raises:
        ConfigError: the means are too close to `max_total` for this spread.
    """
    rng = random.Random(recipe.seed)
    times = _arrivals(recipe.arrivals, recipe.rate, recipe.count, rng)
    lengths = _lengths(recipe, rng)
    requests = []
    for arrival, (prompt, output) in zip(times, lengths, strict=True):
        prefix: tuple[int, ...] = ()
        if recipe.shared_prefix:
            prompt = max(prompt, recipe.shared_prefix + 1)
            prefix = (rng.randrange(recipe.groups),)
        requests.append(WorkloadRequest(arrival, prompt, output, prefix))
    return Workload(
        name=name,
        format="synthetic",
        requests=tuple(requests),
        prefix_unit=recipe.shared_prefix,
        source=_describe(recipe),
        notes=(("synthetic", recipe.count),),
    )


def retime(workload: Workload, rate: float, arrivals: str = "poisson", seed: int = 0) -> Workload:
    """The same requests with other arrivals, for files that say no times.

    Raises:
        ConfigError: an unknown kind of arrivals, or a rate out of range.
    """
    if arrivals not in ARRIVALS:
        choices = ", ".join(ARRIVALS)
        raise ConfigError("choice", name="arrivals", value=arrivals, choices=choices)
    check_number("rate", rate, *_RANGES["rate"])
    times = _arrivals(arrivals, rate, len(workload), random.Random(seed))
    requests = tuple(
        replace(request, arrival=time)
        for request, time in zip(workload.requests, times, strict=True)
    )
    notes = tuple(note for note in workload.notes if note[0] != "at_once")
    notes += (("retimed", len(requests)),)
    source = f"{workload.source}, {arrivals} {rate:g}/s, seed {seed}"
    return replace(workload, requests=requests, notes=notes, source=source)


def _arrivals(kind: str, rate: float, count: int, rng: random.Random) -> list[float]:
    if kind == "at_once":
        return [0.0] * count
    if kind == "fixed":
        return [number / rate for number in range(count)]
    times = [0.0]
    while len(times) < count:
        times.append(times[-1] + _gap(kind, rate, rng))
    return times


def _gap(kind: str, rate: float, rng: random.Random) -> float:
    """Seconds to the next arrival, 1 / `rate` on average.

    A bursty gap is, with one chance in `_BURST`, the pause before the next burst.
    """
    if kind == "poisson":
        return rng.expovariate(rate)
    between = _BURST / rate
    inside = between * _BURST_GAP / _BURST
    if rng.random() * _BURST < 1:
        return rng.expovariate(1 / (between - inside * (_BURST - 1)))
    return rng.expovariate(1 / inside)


def _lengths(recipe: Recipe, rng: random.Random) -> list[tuple[int, int]]:
    if recipe.lengths == "fixed":
        pair = round(recipe.prompt_mean), round(recipe.output_mean)
        return [pair] * recipe.count
    if recipe.lengths == "uniform":
        tops = [max(1, round(2 * m) - 1) for m in (recipe.prompt_mean, recipe.output_mean)]
        return [(rng.randint(1, tops[0]), rng.randint(1, tops[1])) for _ in range(recipe.count)]
    fit = fit_lognormal(recipe)
    pairs: list[tuple[int, int]] = []
    while len(pairs) < recipe.count:
        prompt = max(1, round(rng.lognormvariate(*fit.prompt)))
        output = max(1, round(rng.lognormvariate(*fit.output)))
        if max(prompt, recipe.shared_prefix + 1) + output <= recipe.max_total:
            pairs.append((prompt, output))
    return pairs


def fit_lognormal(recipe: Recipe) -> Fit:
    """The log-normals of a recipe, their means after dropping within one part in a million.

    Each round scales both by what their means lack; a heavier cut converges more slowly.

    Raises:
        ConfigError: fewer than 2 % of the pairs would be kept.
    """
    sigmas = [math.sqrt(math.log1p(cv * cv)) for cv in (recipe.prompt_cv, recipe.output_cv)]
    wanted = (recipe.prompt_mean, recipe.output_mean)
    mus = [math.log(mean) - s * s / 2 for mean, s in zip(wanted, sigmas, strict=True)]
    kept = 1.0
    for _ in range(_ROUNDS):
        *means, kept = _cut_means((mus[0], sigmas[0]), (mus[1], sigmas[1]), recipe.max_total)
        if kept < _MIN_KEPT:
            break
        lack = [want / mean for want, mean in zip(wanted, means, strict=True)]
        mus = [mu + math.log(factor) for mu, factor in zip(mus, lack, strict=True)]
        if all(abs(factor - 1) < 1e-6 for factor in lack):
            return Fit((mus[0], sigmas[0]), (mus[1], sigmas[1]), kept)
    raise ConfigError(
        "means_too_long",
        prompt=recipe.prompt_mean,
        output=recipe.output_mean,
        max_total=recipe.max_total,
    )


def _cut_means(
    prompt: tuple[float, float], output: tuple[float, float], limit: int
) -> tuple[float, float, float]:
    """Means of prompt and output where their sum is within `limit`, and how often it is.

    The prompt runs over its quantiles; given one, the output's part below limit - prompt has a
    closed form.
    """
    (mu_p, sigma_p), (mu_o, sigma_o) = prompt, output
    whole_mean = math.exp(mu_o + sigma_o * sigma_o / 2)
    kept = prompts = outputs = 0.0
    for z in _QUANTILES:
        length = math.exp(mu_p + sigma_p * z)
        if length >= limit:
            break
        edge = (math.log(limit - length) - mu_o) / sigma_o
        within = _NORMAL.cdf(edge)
        kept += within
        prompts += length * within
        outputs += whole_mean * _NORMAL.cdf(edge - sigma_o)
    if not kept:
        return math.inf, math.inf, 0.0
    return prompts / kept, outputs / kept, kept / _POINTS


_QUANTILES = [_NORMAL.inv_cdf((number + 0.5) / _POINTS) for number in range(_POINTS)]


def _describe(recipe: Recipe) -> str:
    """The recipe in one line that reads the same in every language."""
    parts = [f"{recipe.count}", recipe.arrivals]
    if recipe.arrivals != "at_once":
        parts.append(f"{recipe.rate:g}/s")
    parts += [recipe.lengths, f"{recipe.prompt_mean:g} + {recipe.output_mean:g}"]
    if recipe.lengths == "lognormal":
        parts.append(f"cv {recipe.prompt_cv:g}, {recipe.output_cv:g} ≤ {recipe.max_total}")
    if recipe.shared_prefix:
        parts.append(f"prefix {recipe.shared_prefix} x {recipe.groups}")
    return ", ".join([*parts, f"seed {recipe.seed}"])
