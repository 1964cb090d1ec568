"""The Compare page's forms: what to run side by side, and what to change in a fork.

It owns the widgets' keys, their ranges and defaults. It starts nothing: it makes values for the
caller from what the visitor set.

NOTE: like the Explore panel, a change of scenario gives every field a new key, because a field in
a closed popover would not take a value set later.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from app.comparing import SCENARIO, Lane, LanePlan
from app.state import Say
from core.config import EngineConfig
from core.errors import ConfigError
from core.request import SamplingParams
from core.workload.compare import SYSTEMS, configure, resized
from core.workload.fork import Changes, to_come
from core.workload.scenario import Arrival, Scenario, find_scenario, scenario_names

__all__ = ["changes_of", "fork_form", "live_form", "plans_of", "system_detail", "system_title"]

_MOST = 4
_CUSTOM = "custom"
_KNOBS: dict[str, tuple[Any, ...]] = {
    "allocator": ("paged", "contiguous"),
    "reserve": ("max", "pow2", "exact"),
    "placement": ("first_fit", "best_fit", "buddy"),
    "batching": ("continuous", "static"),
    "prefix_caching": (True, False),
    "policy": ("fcfs", "priority"),
    "kv_cache_dtype": ("auto", "fp8"),
}
_SIZES: dict[str, tuple[int, int]] = {
    "slots": (16, 65536),
    "block_size": (1, 64),
    "max_num_seqs": (1, 64),
    "max_model_len": (16, 8192),
    "max_num_batched_tokens": (1, 4096),
}
_DEFAULT_SLOTS = 1024
_ADDED_TOKENS = 24


# ------------------------------------------------------------------------------- live


def live_form(say: Say, lang: str, on_run: Callable[[], None], *, is_ready: bool, why: str) -> None:
    """The panel "Compare live".

    Args:
        say: words in the visitor's language.
        lang: of the scenarios' titles.
        on_run: called when it was sent, with all values in the session's state.
        is_ready: whether it can be sent.
        why: it can't.
    """
    names = scenario_names()
    first = next((n for n in names if n.endswith(SCENARIO)), names[0])
    name = st.selectbox(
        say("scenario"), names, names.index(first), key="gbx_cmp_scenario",
        format_func=lambda n: _title(find_scenario(n), lang),
    )  # fmt: skip
    scenario = find_scenario(name)
    systems = [*SYSTEMS, _CUSTOM]
    st.multiselect(
        say("cmp.systems"), systems, ["continuous", "paged"], key="gbx_cmp_systems",
        max_selections=_MOST, help=say("cmp.systems_help"),
        format_func=lambda n: say(f"cmp.system_{n}"),
    )  # fmt: skip
    with st.form("gbx_cmp_form", border=False):
        _size_fields(scenario, say)
        if _CUSTOM in st.session_state.get("gbx_cmp_systems", ()):
            st.caption(say("cmp.custom_caption"))
            _knob_fields(say, "gbx_cmp_custom", _defaults(scenario.config))
        st.toggle(say("cmp.in_turn"), value=True, key="gbx_cmp_in_turn",
                  help=say("cmp.in_turn_help"))  # fmt: skip
        if not is_ready:
            st.caption(why)
        st.form_submit_button(
            say("cmp.run"), type="primary", disabled=not is_ready, key="gbx_cmp_run",
            on_click=on_run,
        )  # fmt: skip


def plans_of() -> tuple[Scenario, list[LanePlan]]:
    """What the panel asks for.

    Raises:
        ConfigError: fewer than two systems, or settings that can't work.
        WorkloadError: the scenario has a fault.
    """
    state = st.session_state
    scenario = find_scenario(state["gbx_cmp_scenario"])
    names = list(state["gbx_cmp_systems"])
    if len(names) < 2:
        raise ConfigError("two_systems")
    sizes = {name: _number(_size_key(name, scenario), name) for name in _SIZES}
    base = _sized(scenario)
    base = resized(base, sizes["block_size"], sizes["slots"])
    base = replace(
        base, max_num_seqs=sizes["max_num_seqs"], max_model_len=sizes["max_model_len"],
        max_num_batched_tokens=sizes["max_num_batched_tokens"],
    )  # fmt: skip
    plans = []
    for name in names:
        config = _custom(base) if name == _CUSTOM else configure(base, name)
        plans.append(LanePlan(name, config, scenario.arrivals, scenario.title))
    return scenario, plans


def _sized(scenario: Scenario) -> EngineConfig:
    config = replace(scenario.config, kv_memory=None)
    if config.num_blocks is not None:
        return config
    blocks = max(2, _DEFAULT_SLOTS // config.block_size + (config.semantics == "v1"))
    return replace(config, num_blocks=blocks)


def _custom(base: EngineConfig) -> EngineConfig:
    knobs = {name: st.session_state[f"gbx_cmp_custom_{name}"] for name in _KNOBS}
    if knobs["allocator"] == "contiguous":
        knobs["prefix_caching"] = None
    return replace(base, **knobs)


def _size_fields(scenario: Scenario, say: Say) -> None:
    config = _sized(scenario)
    values = {
        "slots": config.usable_slots,
        "block_size": config.block_size,
        "max_num_seqs": config.max_num_seqs,
        # Without a limit of its own, four requests of the longest length fit the memory.
        "max_model_len": config.max_model_len or max(16, config.usable_slots // 4),
        "max_num_batched_tokens": config.max_num_batched_tokens,
    }
    fields = zip(st.columns(len(_SIZES), gap="small"), _SIZES.items(), strict=True)
    for column, (name, (low, high)) in fields:
        column.number_input(
            say(f"cmp.{name}"), low, high, min(high, max(low, values[name])), 1,
            key=_size_key(name, scenario), help=say(f"cmp.{name}_help"),
        )  # fmt: skip


def _size_key(name: str, scenario: Scenario) -> str:
    return f"gbx_cmp_{name}_{scenario.name}"


def _knob_fields(say: Say, prefix: str, values: Mapping[str, Any], *, keep: bool = False) -> None:
    """One select box a setting; with `keep` each can be left as it was."""
    columns = st.columns(3, gap="small")
    for index, (name, choices) in enumerate(_KNOBS.items()):
        options = (None, *choices) if keep else choices
        words = {value: say(f"cmp.{name}_{value}".lower()) for value in choices}
        before = words.get(values[name], str(values[name]))
        words[None] = say("cmp.as_before", value=before)
        columns[index % 3].selectbox(
            say(f"cmp.{name}"), options, 0 if keep else options.index(values[name]),
            key=f"{prefix}_{name}", help=say(f"cmp.{name}_help"), format_func=words.__getitem__,
        )  # fmt: skip


def _defaults(config: EngineConfig) -> dict[str, Any]:
    values = {name: getattr(config, name) for name in _KNOBS}
    return values | {"prefix_caching": config.caching}


# ------------------------------------------------------------------------------- fork


def fork_form(
    lanes: Sequence[Lane],
    titles: Sequence[str],
    step: int,
    lane: int,
    say: Say,
    on_run: Callable[[], None],
    *,
    is_ready: bool,
    why: str,
) -> None:
    """The panel "Fork the past"; its keys bear the run's, so that a new run starts afresh."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        chosen = st.selectbox(
            say("cmp.fork_run"), range(len(lanes)), min(lane, len(lanes) - 1),
            key="gbx_fork_lane_" + lanes[0].key, format_func=titles.__getitem__, width=330,
        )  # fmt: skip
        source = lanes[chosen]
        last = source.trace.num_steps
        at = st.number_input(
            say("cmp.fork_step"), source.first_step, last, min(last, max(step, source.first_step)),
            key=f"gbx_fork_step_{source.key}_{step}", width=150, help=say("cmp.fork_step_help"),
        )  # fmt: skip
    st.session_state["gbx_fork"] = (source, int(at))
    with st.form("gbx_fork_form", border=False):
        _fork_sizes(source.config, say)
        _knob_fields(say, "gbx_fork", _defaults(source.config), keep=True)
        _fork_arrivals(source, int(at), say)
        if not is_ready:
            st.caption(why)
        st.form_submit_button(
            say("cmp.fork_go"), type="primary", disabled=not is_ready, key="gbx_fork_go",
            on_click=on_run,
        )  # fmt: skip


def _fork_sizes(config: EngineConfig, say: Say) -> None:
    before = {
        "slots": config.usable_slots, "block_size": config.block_size,
        "max_num_seqs": config.max_num_seqs, "max_model_len": config.max_model_len,
        "max_num_batched_tokens": config.max_num_batched_tokens,
    }  # fmt: skip
    fields = zip(st.columns(len(_SIZES), gap="small"), _SIZES.items(), strict=True)
    for column, (name, (low, high)) in fields:
        column.number_input(
            say(f"cmp.{name}"), low, high, None, 1, key=f"gbx_fork_{name}",
            placeholder=say("cmp.as_before", value=before[name]), help=say(f"cmp.{name}_help"),
        )  # fmt: skip


def _fork_arrivals(source: Lane, step: int, say: Say) -> None:
    """Which requests to leave out, to move, and to add."""
    coming = to_come(source.trace, step)
    snapshot = source.trace.snapshot(step)
    living = [*snapshot.running, *snapshot.waiting, *snapshot.swapped]
    labels = {request_id: snapshot.requests[request_id].label for request_id in living}
    labels |= {
        request_id: say("cmp.comes_at", label=label, step=at)
        for request_id, (label, at) in coming.items()
    }
    left, middle, right = st.columns([2, 2, 1], gap="small")
    left.multiselect(
        say("cmp.fork_drop"), list(labels), key="gbx_fork_drop", format_func=labels.__getitem__,
        help=say("cmp.fork_drop_help"), placeholder=say("cmp.nobody"),
    )  # fmt: skip
    middle.selectbox(
        say("cmp.fork_move"), [None, *coming], key="gbx_fork_move",
        format_func=lambda r: labels[r] if r else say("cmp.nobody"), help=say("cmp.fork_move_help"),
    )  # fmt: skip
    right.number_input(
        say("cmp.fork_move_to"), 1, 100_000, step + 1, key=f"gbx_fork_move_to_{step}"
    )
    left, middle, right = st.columns([3, 1, 1], gap="small")
    left.text_input(
        say("cmp.fork_add"), key="gbx_fork_add", placeholder=say("cmp.fork_add_placeholder")
    )
    middle.number_input(say("cmp.fork_add_at"), 1, 100_000, step + 1, key=f"gbx_fork_add_at_{step}")
    right.number_input(say("max_tokens"), 1, 512, _ADDED_TOKENS, key="gbx_fork_add_tokens")


def changes_of(source: Lane, step: int) -> Changes:
    """What the fork's panel asks for.

    Raises:
        ConfigError: settings that can't work.
    """
    state = st.session_state
    engine = {name: state[f"gbx_fork_{name}"] for name in (*_SIZES, *_KNOBS)}
    engine = {name: value for name, value in engine.items() if value is not None}
    slots = engine.pop("slots", None)
    if slots is not None or "block_size" in engine:
        size = engine.pop("block_size", source.config.block_size)
        sized = resized(source.config, size, slots)
        engine |= {"block_size": size, "num_blocks": sized.num_blocks}
    if engine.get("allocator", source.config.allocator) == "contiguous":
        engine["prefix_caching"] = None
    moved = state["gbx_fork_move"]
    added = (state["gbx_fork_add"] or "").strip()
    params = SamplingParams(max_tokens=int(state["gbx_fork_add_tokens"] or _ADDED_TOKENS))
    add_at = int(state[f"gbx_fork_add_at_{step}"] or step + 1)
    return Changes(
        engine=engine,
        drop=frozenset(state["gbx_fork_drop"]),
        move={moved: int(state[f"gbx_fork_move_to_{step}"] or step + 1)} if moved else {},
        add=(Arrival(added, params, at_step=max(step + 1, add_at)),) if added else (),
    )


# ------------------------------------------------------------------------------- words


def system_title(lane: Lane, say: Say) -> str:
    """What a lane's card is headed with."""
    return say(f"cmp.system_{lane.name}")


def system_detail(config: EngineConfig, say: Say, *, same: bool) -> str:
    """How the memory is laid out, and its size; `same`: all lanes have as many slots."""
    size = say("cmp.same_slots" if same else "cmp.own_slots", slots=f"{config.usable_slots:,}")
    if config.kv_cache_dtype == "fp8":
        size += f" · {say('cmp.in_fp8')}"
    batching = say(f"cmp.batching_{config.batching}")
    if config.is_contiguous:
        reserve = say(f"cmp.reserves_{config.reserve}", slots=config.max_model_len or "?")
        return f"{reserve}, {say(f'cmp.placement_{config.placement}')} · {batching} · {size}"
    sharing = say("cmp.with_sharing" if config.caching else "cmp.without_sharing")
    blocks = say("cmp.blocks_of", size=config.block_size)
    return f"{blocks} · {sharing} · {batching} · {size}"


def _title(scenario: Scenario, lang: str) -> str:
    return scenario.title.get(lang) or scenario.title["en"]


def _number(key: str, name: str) -> int:
    """A number field's value.

    Raises:
        ConfigError: the field was emptied.
    """
    value = st.session_state[key]
    if value is None:
        low, high = _SIZES[name]
        raise ConfigError("range", name=name, value="-", low=low, high=high)
    return int(value)
