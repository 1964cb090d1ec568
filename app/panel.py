"""The panel "Run it live": prompts, settings, and the plan that they make.

It owns the widgets' keys and their defaults. It starts nothing: `plan_of` is for the caller.

NOTE: a reset gives every widget a new key. Setting `st.session_state` instead would not reach a
number field in a closed popover: it is mounted later, with the value that its element carries.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from app.live import Plan
from app.state import Say
from core.errors import ConfigError
from core.request import SamplingParams
from core.workload.scenario import Arrival, Scenario

__all__ = ["arrivals_of", "plan_of", "reset", "show_panel", "widget_key"]

_AT_STEP = re.compile(r"@(\d{1,5})\s+")
_ENGINE_RANGES = {
    "block_size": (1, 64),
    "num_blocks": (2, 4096),
    "max_num_seqs": (1, 64),
    "max_num_batched_tokens": (1, 4096),
}
_CHOICES: dict[str, tuple[Any, ...]] = {
    "semantics": ("v1", "paper"),
    "policy": ("fcfs", "priority"),
    "prefix_caching": (True, False),
    "kv_cache_dtype": ("auto", "fp8"),
}
_PARAM_RANGES: dict[str, tuple[float, float]] = {
    "max_tokens": (1, 512),
    "n": (1, 8),
    "beam_width": (1, 8),
    "temperature": (0.0, 2.0),
    "seed": (0, 2**31 - 1),
}
_DEFAULT_BLOCKS = 64
_DEFAULT_TOKENS = 48


def reset() -> None:
    """Every setting becomes the scenario's again when the panel is shown next."""
    st.session_state["gbx_version"] = st.session_state.get("gbx_version", 0) + 1


def show_panel(
    scenario: Scenario, say: Say, on_run: Callable[[], None], *, is_ready: bool, why: str
) -> None:
    """The panel's widgets.

    Args:
        scenario: whose settings are the defaults.
        say: words in the visitor's language.
        on_run: called when "run" was pressed, with all values in the session's state.
        is_ready: whether a run can start.
        why: it can't.
    """
    st.segmented_control(
        say("source"), ["scenario", "own"], key="gbx_source", required=True, default="scenario",
        format_func=lambda name: say(f"source_{name}"), label_visibility="collapsed",
    )  # fmt: skip
    with st.form("gbx_form", border=False):
        if st.session_state.get("gbx_source") == "own":
            st.text_area(
                say("prompts"), key="gbx_prompts", height=110, help=say("prompts_help"),
                placeholder=say("prompts_placeholder"),
            )  # fmt: skip
        _engine_fields(scenario, say)
        _param_fields(say)
        if not is_ready:
            st.caption(why)
        with st.container(horizontal=True):
            st.form_submit_button(
                say("run"), type="primary", disabled=not is_ready, key="gbx_run", on_click=on_run
            )
            st.form_submit_button(say("reset"), key="gbx_reset", on_click=reset)


def plan_of(scenario: Scenario, title: Mapping[str, str]) -> Plan:
    """What the widgets ask for; `title` is of a run of the visitor's own prompts.

    Raises:
        ConfigError: settings that can't work.
    """
    state = st.session_state
    engine: dict[str, Any] = {name: _number(name) for name in _ENGINE_RANGES}
    engine |= {name: state[widget_key(name)] for name in _CHOICES}
    engine["kv_memory"] = None
    if engine["semantics"] == "v1" and scenario.config.preemption == "swap":
        engine["preemption"] = "auto"
    asked = {name: state[widget_key(name)] for name in _PARAM_RANGES}
    params = {name: value for name, value in asked.items() if value is not None}
    changed = scenario.with_changes(engine, params)
    if state.get("gbx_source") != "own":
        return Plan(changed.config, changed.arrivals, scenario.title)
    own = SamplingParams(**({"max_tokens": _DEFAULT_TOKENS} | params))
    return Plan(changed.config, arrivals_of(state.get("gbx_prompts") or "", own), title)


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


def widget_key(name: str) -> str:
    """The key of a setting's widget; never translated."""
    return f"gbx_{name}_{st.session_state.get('gbx_version', 0)}"


def _engine_fields(scenario: Scenario, say: Say) -> None:
    config = scenario.config
    fields = zip(st.columns(4, gap="small"), _ENGINE_RANGES.items(), strict=True)
    for column, (name, (low, high)) in fields:
        value = min(high, max(low, getattr(config, name) or _DEFAULT_BLOCKS))
        column.number_input(
            say(name), low, high, value, 1, key=widget_key(name), help=say(f"{name}_help")
        )
    current = {"semantics": config.semantics, "policy": config.policy,
               "prefix_caching": config.caching,
               "kv_cache_dtype": config.kv_cache_dtype}  # fmt: skip
    for choice_column, name in zip(st.columns(4, gap="small"), _CHOICES, strict=True):
        options = _CHOICES[name]
        words = {value: say(f"{name}_{value}".lower()) for value in options}
        choice_column.selectbox(
            say(name), options, options.index(current[name]), key=widget_key(name),
            help=say(f"{name}_help"), format_func=words.__getitem__,
        )  # fmt: skip


def _param_fields(say: Say) -> None:
    fields = zip(st.columns(5, gap="small"), _PARAM_RANGES.items(), strict=True)
    for column, (name, (low, high)) in fields:
        column.number_input(
            say(name), low, high, None, 0.1 if isinstance(low, float) else 1,
            key=widget_key(name), help=say(f"{name}_help"), placeholder=say("as_in_scenario"),
        )  # fmt: skip


def _number(name: str) -> int:
    """A number field's value.

    Raises:
        ConfigError: the field was emptied.
    """
    value = st.session_state[widget_key(name)]
    if value is None:
        low, high = _ENGINE_RANGES[name]
        raise ConfigError("range", name=name, value="-", low=low, high=high)
    return int(value)
