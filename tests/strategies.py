"""Hypothesis strategies: configurations, prompts and whole scripts of what users do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from core.config import EngineConfig
from core.request import SamplingParams

_TOKENS = st.integers(2, 6)  # few different tokens: equal prefixes are common


@st.composite
def configs(draw: st.DrawFn, **fixed: Any) -> EngineConfig:
    """A small pool under any settings that go together."""
    semantics = fixed.get("semantics") or draw(st.sampled_from(["paper", "v1"]))
    modes = ["auto", "recompute", "swap"] if semantics == "paper" else ["auto", "recompute"]
    settings: dict[str, Any] = {
        "semantics": semantics,
        "block_size": draw(st.sampled_from([1, 2, 3, 4, 8])),
        "num_blocks": draw(st.integers(6, 32)),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "max_num_seqs": draw(st.integers(2, 8)),
        "max_num_batched_tokens": draw(st.sampled_from([4, 8, 16, 64])),
        "prefix_caching": draw(st.sampled_from([True, False, None])),
        "watermark": draw(st.sampled_from([None, 0.0, 0.1])),
        "chunked_prefill": draw(st.booleans()),
        "reserve_full_prompt": draw(st.booleans()),
        "preemption": draw(st.sampled_from(modes)),
        "num_host_blocks": draw(st.sampled_from([0, 4, 64])),
    }
    if settings["chunked_prefill"]:
        settings["long_prefill_token_threshold"] = draw(st.sampled_from([0, 0, 3]))
    return EngineConfig(**{**settings, **fixed})


@st.composite
def contiguous_configs(draw: st.DrawFn, **fixed: Any) -> EngineConfig:
    """A small contiguous memory; `max_model_len` a fraction of it, so that several fit."""
    settings: dict[str, Any] = {
        "allocator": "contiguous",
        "semantics": draw(st.sampled_from(["paper", "v1"])),
        "reserve": draw(st.sampled_from(["max", "pow2", "exact"])),
        "placement": draw(st.sampled_from(["first_fit", "best_fit", "buddy"])),
        "batching": draw(st.sampled_from(["continuous", "static"])),
        "block_size": draw(st.sampled_from([1, 3, 16])),
        "num_blocks": draw(st.integers(4, 24)),
        "max_model_len": draw(st.integers(16, 40)),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "max_num_seqs": draw(st.integers(2, 8)),
        "max_num_batched_tokens": draw(st.sampled_from([4, 8, 64])),
        "chunked_prefill": draw(st.booleans()),
    }
    return EngineConfig(**{**settings, **fixed})


@dataclass(frozen=True)
class Add:
    """A request arrives."""

    tokens: tuple[int, ...]
    params: SamplingParams
    priority: int
    salt: str | None


@dataclass(frozen=True)
class Abort:
    """The user gives up on the n-th request."""

    which: int


@dataclass(frozen=True)
class Step:
    """The engine takes some steps."""

    count: int


@st.composite
def _adds(draw: st.DrawFn, semantics: str) -> Add:
    stem = draw(st.sampled_from([(), (2, 3, 4, 5, 6, 2, 3, 4), (5, 5, 5, 5, 5, 5, 5, 5, 5)]))
    tail = draw(st.lists(_TOKENS, min_size=1, max_size=6))
    kinds = ["one", "one", "samples"] + (["beams"] if semantics == "paper" else [])
    kind = draw(st.sampled_from(kinds))
    wide = draw(st.integers(2, 3))
    params = SamplingParams(
        max_tokens=draw(st.integers(1, 12)),
        n=wide if kind == "samples" else 1,
        beam_width=wide if kind == "beams" else 1,
    )
    salt = draw(st.sampled_from([None, None, "s"]))
    return Add((*stem, *tail), params, draw(st.integers(0, 2)), salt)


@st.composite
def scripts(draw: st.DrawFn, semantics: str) -> list[Add | Abort | Step]:
    """What happens to an engine, the last steps to the end not included."""
    moves = st.one_of(
        _adds(semantics),
        _adds(semantics),
        st.builds(Step, st.integers(1, 4)),
        st.builds(Abort, st.integers(0, 5)),
    )
    return draw(st.lists(moves, min_size=1, max_size=14))
