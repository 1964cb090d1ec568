"""The settings of a simulation: widgets, and the plan that they make.

It owns the widgets' keys and defaults. It starts nothing. A default that depends on another choice
(the rate of a preset, the slots of a device) has a key of its own for every choice, so that each
keeps what the visitor set.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import streamlit as st

from app.sim_command import simulate_command
from app.sim_runs import Limits, Part, Plan
from app.state import Say
from core.capacity.hardware import GIB, HARDWARE, find_hardware
from core.capacity.shapes import SHAPES, find_shape, kv_memory
from core.errors import ConfigError, GlassblockError, LimitError, WorkloadError
from core.exec.cost_model import Assumption, CostModel
from core.workload import synthetic
from core.workload.loading import FORMATS, load_workload
from core.workload.requests import Workload
from core.workload.systems import SYSTEMS, system_config

__all__ = ["PRESET_SLOTS", "plan_of", "show_form", "system_title"]

_SOURCES = ("sharegpt", "alpaca", "own", "file")
_FILES = ["csv", "json", "jsonl", "txt"]
_MAX_UPLOAD = 16 << 20
_DEFAULT_SYSTEMS = ("paged", "orca-max", "orca-pow2", "orca-oracle")
_REQUESTS = 400  # as in the recorded set, so that a run of the defaults repeats it
# The paper's own account of OPT-13B on this device: 12 GiB for the cache, 819,200 bytes a slot.
PRESET_SLOTS = {("a100-40gb", "opt-13b"): 15_729}
_SWEEP = (1 / 4, 1 / 2, 1, 2)
_FALLBACK_SLOTS = 4096
_MAX_SLOTS = 1 << 22
_CONTEXT = 2048  # the longest of the presets
_DTYPE = "float16"
_OWN = ("prompt_mean", "output_mean", "arrivals", "lengths", "shared_prefix", "groups")


def system_title(name: str, say: Say) -> str:
    """A system's name for readers; one that we don't know stays as it is."""
    return say(f"sim.system_{name.replace('-', '_')}") if name in SYSTEMS else name


def show_form(say: Say) -> None:
    """The widgets, in the order in which one thinks of them."""
    source = st.selectbox(
        say("sim.workload"), _SOURCES, key="gbx_sim_source",
        format_func=lambda name: say(f"sim.source_{name}"),
    )  # fmt: skip
    if source == "file":
        _file_fields(say)
    else:
        _synthetic_fields(source, say)
    st.pills(
        say("sim.systems"), list(SYSTEMS), selection_mode="multi", key="gbx_sim_systems",
        default=list(_DEFAULT_SYSTEMS), format_func=lambda name: system_title(name, say),
    )  # fmt: skip
    _device_fields(say)
    with st.expander(say("sim.more"), key="gbx_sim_more"):
        _engine_fields(source, say)


def plan_of(say: Say) -> Plan:
    """What the widgets ask for.

    Raises:
        GlassblockError: settings that can't work, or a file that can't be read.
    """
    state = st.session_state
    systems = [name for name in SYSTEMS if name in (state.get("gbx_sim_systems") or ())]
    if not systems:
        raise ConfigError("sim_no_system")
    workload = _workload(say)
    hardware, shape = state["gbx_sim_hardware"], state["gbx_sim_shape"]
    cost = CostModel(find_hardware(hardware), find_shape(shape), dtype=_DTYPE)
    slots = int(state[_slots_key(hardware, shape)])
    settings = _settings(workload, SHAPES[shape].max_len)
    parts = []
    for name in systems:
        command = _command(name, slots, settings, workload)
        parts.append(Part(name, _config(name, slots, settings), command=command))
    if state.get("gbx_sim_sweep"):
        sizes = [round(slots * share) for share in _SWEEP]
        parts += [
            Part(name, _config(name, size, settings), is_pool=True)
            for name in systems
            for size in sizes
        ]
    return Plan(workload, cost, tuple(parts), tuple(_assumptions(slots, settings)))


# ------------------------------------------------------------------------------------ widgets


def _synthetic_fields(source: str, say: Say) -> None:
    preset = synthetic.PRESETS.get(source, synthetic.Recipe())
    left, right = st.columns(2, gap="small")
    left.number_input(
        say("sim.requests"), 1, Limits().requests, _REQUESTS, 50, key=f"gbx_sim_count_{source}"
    )
    right.number_input(
        say("sim.rate"), 0.01, 10_000.0, preset.rate, 0.5, key=f"gbx_sim_rate_{source}",
        format="%g", help=say("sim.rate_help"),
    )  # fmt: skip
    if source != "own":
        st.caption(say("sim.preset", prompt=preset.prompt_mean, output=preset.output_mean))
        return
    left, right = st.columns(2, gap="small")
    left.number_input(
        say("sim.prompt_mean"), 1.0, 1e6, 500.0, 10.0, key="gbx_sim_prompt_mean", format="%g"
    )
    right.number_input(
        say("sim.output_mean"), 1.0, 1e6, 200.0, 10.0, key="gbx_sim_output_mean", format="%g"
    )
    for column, name, choices, default in (
        (left, "arrivals", synthetic.ARRIVALS, "poisson"),
        (right, "lengths", synthetic.LENGTHS, "lognormal"),
    ):
        column.selectbox(
            say(f"sim.{name}"), choices, index=choices.index(default), key=f"gbx_sim_{name}",
            format_func=lambda value, name=name: say(f"sim.{name}_{value}"),
        )  # fmt: skip
    left.number_input(
        say("sim.shared_prefix"), 0, 100_000, 0, 16, key="gbx_sim_shared_prefix",
        help=say("sim.shared_prefix_help"),
    )  # fmt: skip
    right.number_input(say("sim.groups"), 1, 1000, 1, 1, key="gbx_sim_groups")


def _file_fields(say: Say) -> None:
    st.file_uploader(
        say("sim.file"), _FILES, key="gbx_sim_file", max_upload_size=_MAX_UPLOAD >> 20,
        help=say("sim.file_help"),
    )  # fmt: skip
    left, right = st.columns(2, gap="small")
    left.selectbox(
        say("sim.format"), ("auto", *FORMATS), key="gbx_sim_format",
        format_func=lambda name: say(f"sim.format_{name}"),
    )  # fmt: skip
    right.number_input(
        say("sim.limit"), 1, Limits().requests, 1000, 100, key="gbx_sim_limit",
        help=say("sim.limit_help"),
    )  # fmt: skip
    left.number_input(
        say("sim.rate"), 0.01, 10_000.0, 2.0, 0.5, key="gbx_sim_rate_file", format="%g",
        help=say("sim.rate_file_help"),
    )  # fmt: skip
    st.toggle(say("sim.skip"), key="gbx_sim_skip", help=say("sim.skip_help"))


def _device_fields(say: Say) -> None:
    left, right = st.columns(2, gap="small")
    shapes, devices = list(SHAPES), list(HARDWARE)
    shape = left.selectbox(
        say("sim.shape"), shapes, index=shapes.index("opt-13b"), key="gbx_sim_shape",
        format_func=lambda name: SHAPES[name].title,
    )  # fmt: skip
    hardware = right.selectbox(
        say("sim.hardware"), devices, index=devices.index("a100-40gb"), key="gbx_sim_hardware",
        format_func=lambda name: HARDWARE[name].title,
    )  # fmt: skip
    slots, why = _default_slots(hardware, shape, say)
    st.number_input(
        say("sim.slots"), 16, _MAX_SLOTS, slots, 256, key=_slots_key(hardware, shape), help=why
    )
    st.caption(why)
    st.toggle(say("sim.sweep"), key="gbx_sim_sweep", help=say("sim.sweep_help"))


def _default_slots(hardware: str, shape: str, say: Say) -> tuple[int, str]:
    """Slots that the device has room for, and a sentence that says how they come about."""
    slot = SHAPES[shape].slot_bytes()
    if (hardware, shape) in PRESET_SLOTS:
        return PRESET_SLOTS[hardware, shape], say("sim.slots_paper", bytes=f"{slot:,}")
    slots = _derived_slots(hardware, shape)
    if slots is None:
        return _FALLBACK_SLOTS, say("sim.slots_too_big", slots=f"{_FALLBACK_SLOTS:,}")
    gib = f"{slots * slot / GIB:.1f}"
    return slots, say("sim.slots_derived", gib=gib, bytes=f"{slot:,}")


def _derived_slots(hardware: str, shape: str) -> int | None:
    """Slots that vLLM's account of the device's memory leaves; None when the weights don't fit."""
    try:
        memory = kv_memory(HARDWARE[hardware], SHAPES[shape])
    except ConfigError:
        return None
    return max(16, min(_MAX_SLOTS, memory // SHAPES[shape].slot_bytes()))


def _engine_fields(source: str, say: Say) -> None:
    left, right = st.columns(2, gap="small")
    left.number_input(
        say("block_size"), 1, 512, 16, 1, key="gbx_sim_block_size", help=say("sim.block_help")
    )
    right.number_input(
        say("sim.max_model_len"), 16, 1 << 20, None if source == "file" else _CONTEXT, 256,
        key=_context_key(source), help=say("sim.max_model_len_help"),
        placeholder=say("sim.as_needed"),
    )  # fmt: skip
    left.number_input(say("max_num_seqs"), 1, 1024, 256, 16, key="gbx_sim_max_seqs")
    right.number_input(
        say("max_num_batched_tokens"), 1, 1 << 16, 2048, 256, key="gbx_sim_budget"
    )  # fmt: skip
    left.selectbox(
        say("semantics"), ("v1", "paper"), key="gbx_sim_semantics",
        format_func=lambda name: say(f"semantics_{name}"), help=say("semantics_help"),
    )  # fmt: skip
    right.selectbox(
        say("prefix_caching"), (None, True, False), key="gbx_sim_caching",
        format_func=lambda value: say(f"sim.caching_{value}".lower()),
        help=say("sim.caching_help"),
    )  # fmt: skip


def _context_key(source: str) -> str:
    return f"gbx_sim_max_len_{'file' if source == 'file' else 'drawn'}"


def _slots_key(hardware: str, shape: str) -> str:
    return f"gbx_sim_slots_{hardware}_{shape}"


# --------------------------------------------------------------------------------------- plan


def _settings(workload: Workload, longest: int) -> dict[str, Any]:
    state = st.session_state
    asked = state.get(_context_key(state["gbx_sim_source"]))
    needed = max((request.total_tokens for request in workload.requests), default=1)
    size = int(state.get("gbx_sim_block_size", 16))
    return {
        # Prefix names of a file stand for runs of so many tokens; a block must not straddle two.
        "block_size": size if not workload.prefix_unit else _divisor(workload.prefix_unit, size),
        "max_model_len": int(asked or min(longest, max(_CONTEXT, _power_of_two(needed)))),
        "max_num_seqs": int(state.get("gbx_sim_max_seqs", 256)),
        "max_num_batched_tokens": int(state.get("gbx_sim_budget", 2048)),
        "semantics": state.get("gbx_sim_semantics", "v1"),
        "prefix_caching": state.get("gbx_sim_caching"),
    }


def _assumptions(slots: int, settings: dict[str, Any]) -> list[Assumption]:
    """What the form took for granted: a context as long as a file needs, memory as derived."""
    state = st.session_state
    hardware, shape = state["gbx_sim_hardware"], state["gbx_sim_shape"]
    found = []
    if not state.get(_context_key(state["gbx_sim_source"])):
        found.append(Assumption("context", {"limit": settings["max_model_len"]}))
    if (hardware, shape) not in PRESET_SLOTS and slots == _derived_slots(hardware, shape):
        found.append(Assumption("pool", {"slots": slots, "utilisation": 90}))
    return found


def _power_of_two(least: int) -> int:
    """The smallest power of two from `least` on.

    >>> _power_of_two(5), _power_of_two(8)
    (8, 8)
    """
    return 1 << (least - 1).bit_length()


def _divisor(unit: int, size: int) -> int:
    """The largest block size up to `size` that divides `unit`.

    >>> _divisor(512, 16), _divisor(80, 16), _divisor(50, 16)
    (16, 16, 10)
    """
    return max(k for k in range(1, size + 1) if unit % k == 0)


def _config(system: str, slots: int, settings: dict[str, Any]) -> Any:
    chosen = dict(settings)
    if SYSTEMS[system]["allocator"] == "contiguous":
        chosen["prefix_caching"] = None  # contiguous memory has none, and refuses to be asked
    return system_config(system, num_slots=slots, **chosen)


def _command(system: str, slots: int, settings: dict[str, Any], workload: Workload) -> str:
    """The line of `glassblock simulate` that makes the same run."""
    state = st.session_state
    engine = dict(settings)
    if SYSTEMS[system]["allocator"] == "contiguous":
        engine["prefix_caching"] = None
    if workload.prefix_unit and state["gbx_sim_source"] == "file":
        engine["block_size"] = str(engine["block_size"])  # else the command takes the whole unit
    return simulate_command(
        {
            **_workload_options(workload),
            "hardware": state["gbx_sim_hardware"],
            "model_shape": state["gbx_sim_shape"],
            "dtype": _DTYPE,
            "num_slots": slots,
            **engine,
            "system": system,
        }
    )


def _workload_options(workload: Workload) -> dict[str, Any]:
    state = st.session_state
    source = state["gbx_sim_source"]
    if source == "file":
        is_drawn = any(code == "retimed" for code, _ in workload.notes)
        return {
            "workload": state["gbx_sim_file"].name,
            "format": workload.format,
            "limit": int(state["gbx_sim_limit"]),
            "skip_bad_rows": bool(state["gbx_sim_skip"]) or None,
            "retime": float(state["gbx_sim_rate_file"]) if is_drawn else None,
        }
    drawn = {
        "workload": "synthetic",
        "preset": None if source == "own" else source,
        "requests": int(state[f"gbx_sim_count_{source}"]),
        "rate": float(state[f"gbx_sim_rate_{source}"]),
    }
    if source == "own":
        drawn |= {name: state[f"gbx_sim_{name}"] for name in _OWN}
        drawn["max_total"] = int(state.get(_context_key(source)) or _CONTEXT)
    return drawn


def _workload(say: Say) -> Workload:
    state = st.session_state
    source = state["gbx_sim_source"]
    if source == "file":
        return _file()
    recipe = replace(
        synthetic.PRESETS.get(source, synthetic.Recipe()),
        count=int(state[f"gbx_sim_count_{source}"]),
        rate=float(state[f"gbx_sim_rate_{source}"]),
    )
    if source != "own":
        return synthetic.make(recipe, say(f"sim.source_{source}"))
    longest = int(state.get(_context_key(source)) or _CONTEXT)
    own = {name: state[f"gbx_sim_{name}"] for name in _OWN}
    return synthetic.make(replace(recipe, **own, max_total=longest), say("sim.source_own"))


def _file() -> Workload:
    state = st.session_state
    upload = state.get("gbx_sim_file")
    if upload is None:
        raise WorkloadError("sim_no_file")
    data = upload.getvalue()
    if len(data) > _MAX_UPLOAD:
        raise LimitError("sim_file_large", name=upload.name, limit=_MAX_UPLOAD >> 20)
    with tempfile.TemporaryDirectory(prefix="glassblock-workload-") as folder:
        path = Path(folder) / "upload"
        path.write_bytes(data)
        try:
            found = load_workload(
                path, state["gbx_sim_format"], label=upload.name, limit=int(state["gbx_sim_limit"]),
                skip_bad_rows=bool(state["gbx_sim_skip"]),
            )  # fmt: skip
        except GlassblockError:
            raise
        except Exception as error:  # a file can be wrong in ways that nobody thought of
            raise WorkloadError(
                "sim_file", name=upload.name, detail=type(error).__name__
            ) from error
    if any(code == "at_once" for code, _ in found.notes):
        return synthetic.retime(found, float(state["gbx_sim_rate_file"]))
    return found
