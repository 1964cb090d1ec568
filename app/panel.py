"""The panel "Run it live": prompts, settings, and the plan that they make.

It owns the widgets' keys and their defaults. It starts nothing: `plan_of` is for the caller.
"""

import re
from collections.abc import Mapping
from typing import Any

import streamlit as st

from app.live import Plan
from app.state import Say
from core.errors import ConfigError
from core.request import SamplingParams
from core.workload.scenario import Arrival, Scenario

__all__ = ["arrivals_of", "fill_defaults", "plan_of", "show_panel"]

_AT_STEP = re.compile(r"@(\d{1,5})\s+")
_ENGINE_RANGES = {
    "block_size": (1, 64),
    "num_blocks": (2, 4096),
    "max_num_seqs": (1, 64),
    "max_num_batched_tokens": (1, 4096),
}
_PARAM_RANGES: dict[str, tuple[float, float]] = {
    "max_tokens": (1, 512),
    "n": (1, 8),
    "beam_width": (1, 8),
    "temperature": (0.0, 2.0),
    "seed": (0, 2**31 - 1),
}
_SEMANTICS = ("v1", "paper")
_POLICIES = ("fcfs", "priority")
_DEFAULT_BLOCKS = 64
_DEFAULT_TOKENS = 48


def fill_defaults(scenario: Scenario) -> None:
    """Sets every widget to what the scenario says."""
    config = scenario.config
    state = st.session_state
    for name in _ENGINE_RANGES:
        state[_key(name)] = getattr(config, name) or _DEFAULT_BLOCKS
    state[_key("semantics")] = config.semantics
    state[_key("policy")] = config.policy
    state[_key("prefix_caching")] = config.caching
    for name in _PARAM_RANGES:
        state[_key(name)] = None


def show_panel(scenario: Scenario, say: Say, *, is_ready: bool, why: str) -> tuple[bool, bool]:
    """The panel's widgets.

    Args:
        is_ready: whether a run can start; else `why` says why not.

    Returns:
        Whether "run" was pressed, and whether "reset" was.
    """
    st.segmented_control(
        say("source"), ["scenario", "own"], key=_key("source"), required=True,
        default="scenario", format_func=lambda name: say(f"source_{name}"),
        label_visibility="collapsed",
    )  # fmt: skip
    with st.form("gbx_form", border=False):
        if st.session_state.get(_key("source")) == "own":
            st.text_area(
                say("prompts"), key=_key("prompts"), height=110, help=say("prompts_help"),
                placeholder=say("prompts_placeholder"),
            )  # fmt: skip
        _engine_fields(say)
        _param_fields(say)
        if not is_ready:
            st.caption(why)
        with st.container(horizontal=True):
            run = st.form_submit_button(
                say("run"), type="primary", disabled=not is_ready, key=_key("run")
            )
            reset = st.form_submit_button(
                say("reset"), key=_key("reset"), on_click=fill_defaults, args=(scenario,)
            )
    return run, reset


def plan_of(scenario: Scenario, title: Mapping[str, str]) -> Plan:
    """What the widgets ask for.

    Raises:
        ConfigError: settings that can't work.
    """
    state = st.session_state
    engine: dict[str, Any] = {name: _number(name) for name in _ENGINE_RANGES}
    engine |= {name: state[_key(name)] for name in ("semantics", "policy", "prefix_caching")}
    if engine["semantics"] == "v1" and scenario.config.preemption == "swap":
        engine["preemption"] = "auto"
    engine["kv_memory"] = None
    params = {name: state[_key(name)] for name in _PARAM_RANGES if state[_key(name)] is not None}
    changed = scenario.with_changes(engine, params)
    if state.get(_key("source")) != "own":
        return Plan(changed.config, changed.arrivals, scenario.title)
    own = SamplingParams(**({"max_tokens": _DEFAULT_TOKENS} | params))
    return Plan(changed.config, arrivals_of(state.get(_key("prompts")) or "", own), title)


def arrivals_of(text: str, params: SamplingParams) -> tuple[Arrival, ...]:
    r"""One request a line; a line that begins with `@7 ` arrives before step 7.

    >>> [(a.at_step, a.prompt) for a in arrivals_of("One\n\n@7 Two", SamplingParams())]
    [(1, 'One'), (7, 'Two')]
    """
    arrivals = []
    for line in text.splitlines():
        if not line.strip():
            continue
        match = _AT_STEP.match(line)
        step = max(1, int(match[1])) if match else 1
        arrivals.append(Arrival(line[match.end() :] if match else line, params, at_step=step))
    return tuple(arrivals)


def _engine_fields(say: Say) -> None:
    columns = st.columns(4, gap="small")
    for column, (name, (low, high)) in zip(columns, _ENGINE_RANGES.items(), strict=True):
        column.number_input(
            say(name), int(low), int(high), key=_key(name), help=say(f"{name}_help"), step=1
        )
    columns = st.columns(3, gap="small")
    for column, name, options in zip(
        columns,
        ("semantics", "policy", "prefix_caching"),
        (_SEMANTICS, _POLICIES, (True, False)),
        strict=True,
    ):
        column.selectbox(
            say(name), options, key=_key(name), help=say(f"{name}_help"),
            format_func=lambda value, name=name: say(f"{name}_{value}".lower()),
        )  # fmt: skip


def _param_fields(say: Say) -> None:
    columns = st.columns(5, gap="small")
    hint = say("as_in_scenario")
    for column, (name, (low, high)) in zip(columns, _PARAM_RANGES.items(), strict=True):
        column.number_input(
            say(name), low, high, value=None, key=_key(name), help=say(f"{name}_help"),
            placeholder=hint, step=0.1 if isinstance(low, float) else 1,
        )  # fmt: skip


def _number(name: str) -> int:
    """A number widget's value.

    Raises:
        ConfigError: the field was emptied.
    """
    value = st.session_state[_key(name)]
    if value is None:
        low, high = _ENGINE_RANGES[name]
        raise ConfigError("range", name=name, value="-", low=low, high=high)
    return int(value)


def _key(name: str) -> str:
    return f"gbx_{name}"
