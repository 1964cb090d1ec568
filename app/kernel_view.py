"""What the Kernel lab draws of measured results: times, the roofline, GPUs, compiled kernels.

It owns the way from records to figures and tables. Each says what was measured, on what and by
which command, and what is derived or published. It does not know where a record comes from.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from app.cards import table
from app.export import chart
from app.figures import kernel_times, roofline
from app.figures.frame import Words
from app.figures.kernel_times import Timing
from app.figures.roofline import Point, Roof
from app.lab_results import GpuResult
from app.memory_panel import size_text
from app.sim_view import words_of
from app.state import Say
from app.theme import LOOKS, theme_name
from core.capacity.hardware import HARDWARE, Hardware
from core.exec.decode_points import HEAD_DIM, HEADS, SpeedPoint, SpeedRun, Sweep

__all__ = ["show_checks", "show_compiled", "show_gpu", "show_roofline", "show_times"]

_SWEEPS: tuple[tuple[Sweep, str], ...] = (
    ("block_size", "block_size"),
    ("batch", "lab_batch"),
    ("context", "lab_context"),
)


def show_times(run: SpeedRun, say: Say) -> None:
    """Time against block size, batch and context, side by side."""
    look, words = LOOKS[theme_name()], words_of(say)
    for place, (sweep, across) in zip(st.columns(3, gap="small"), _SWEEPS, strict=True):
        points = [
            Timing(
                _size(point, sweep), point.time.fastest, point.time.median,
                point.bytes_read / run.copy_rate,
            )
            for point in run.of(sweep)
        ]  # fmt: skip
        if not points:
            continue
        with place:
            figure = kernel_times.times(
                points, look, words, title=f"chart_lab_{sweep}", across=across,
                about=_about(run, sweep, say),
            )  # fmt: skip
            chart(figure, f"lab_{sweep}", say)


def _size(point: SpeedPoint, sweep: Sweep) -> int:
    case = point.case
    return {"block_size": case.block_size, "batch": case.num_seqs}.get(sweep, case.context)


def _about(run: SpeedRun, sweep: Sweep, say: Say) -> str:
    case = run.of(sweep)[0].case
    return say(
        f"lab.about_{sweep}", seqs=case.num_seqs, context=case.context, size=case.block_size,
        machine=_machine(run, say),
    )  # fmt: skip


def _machine(run: SpeedRun, say: Say) -> str:
    kernel = "numba" if run.backend == "numba" else "torch"
    return say(
        "lab.machine", model=run.model, dtype=run.dtype, kernel=say(f"lab.kernel_{kernel}"),
        processor=run.processor, threads=run.threads, torch=run.torch, repeats=run.repeats,
    )  # fmt: skip


# ----------------------------------------------------------------------------------- roofline


def show_roofline(run: SpeedRun, say: Say, beside: Sequence[str]) -> None:
    """This machine's measured roof with attention on it, and data sheets' roofs.

    Args:
        run: the record.
        say: words in the visitor's language.
        beside: names of devices whose published roofs are drawn too.
    """
    words: Words = words_of(say)
    here = Roof(say("lab.roof_here"), run.copy_rate, run.matmul_rate, "measured")
    roofs = [here]
    for name in beside:
        device = HARDWARE[name]
        dtype = _dtype(device)
        title = say("lab.roof_sheet", name=device.title, dtype=dtype)
        roofs.append(Roof(title, device.bandwidth, device.peak(dtype), "published"))
    points = [
        Point(
            say("lab.point", group=HEADS // point.case.num_kv_heads), point.intensity,
            point.operations / point.time.fastest,
        )
        for point in run.of("group")
    ]  # fmt: skip
    context = next((point.case.context for point in run.of("group")), 0)
    seqs = next((point.case.num_seqs for point in run.of("group")), 0)
    about = say("lab.about_roof", seqs=seqs, context=context, machine=_machine(run, say))
    figure = roofline.roofline(roofs, points, LOOKS[theme_name()], words, about=about)
    chart(figure, "lab_roofline", say)
    st.html(_points_table(run, here, say))
    with st.expander(say("lab.sheets")):
        st.html(_sheets_table(run, say))


def _points_table(run: SpeedRun, here: Roof, say: Say) -> str:
    """Each point in numbers, and how much of its limit it reaches."""
    rows = []
    for point in run.of("group"):
        rate, bound = point.operations / point.time.fastest, here.at(point.intensity)
        rows.append([
            say("lab.point", group=HEADS // point.case.num_kv_heads),
            f"{point.intensity:.2f}", size_text(point.bytes_read),
            f"{1000 * point.time.fastest:.3f}", f"{1000 * point.time.median:.3f}",
            f"{point.bytes_read / point.time.fastest / 1e9:.1f}", f"{rate / 1e9:.1f}",
            f"{bound / 1e9:.1f}", f"{rate / bound:.0%}",
        ])  # fmt: skip
    head = say("lab.points_head").split("|")
    caption = say(
        "lab.points_caption", copy=f"{run.copy_rate / 1e9:.1f}", size=size_text(run.copied),
        rate=f"{run.matmul_rate / 1e9:.0f}", side=run.side, dtype=run.dtype,
    )  # fmt: skip
    return table([caption], head, rows)


def _sheets_table(run: SpeedRun, say: Say) -> str:
    """What data sheets allow decode attention: derived from published peaks."""
    rows = []
    for device in HARDWARE.values():
        dtype = _dtype(device)
        roof = Roof(device.title, device.bandwidth, device.peak(dtype), "published")
        intensity = _intensity(run, dtype)
        rows.append([
            device.title, dtype, f"{roof.bandwidth / 1e9:,.0f}", f"{roof.rate / 1e12:,.1f}",
            f"{roof.ridge:.0f}", f"{intensity:.1f}", f"{roof.at(intensity) / 1e9:,.0f}",
            f"{roof.at(intensity) / roof.rate:.1%}",
        ])  # fmt: skip
    head = say("lab.sheets_head").split("|")
    return table([say("lab.sheets_caption", model=run.model)], head, rows, words=2)


def _dtype(device: Hardware) -> str:
    """What a model runs in on the device: two bytes where it has arithmetic for it."""
    return next(name for name in ("bfloat16", "float16", "float32") if name in device.flops)


def _intensity(run: SpeedRun, dtype: str) -> float:
    """Operations a byte of the model's decode attention in a data type."""
    item = 4 if dtype == "float32" else 2
    kv_heads = run.points[0].case.num_kv_heads if run.points else HEADS
    return (4 * HEADS * HEAD_DIM) / (2 * kv_heads * HEAD_DIM * item)


# ---------------------------------------------------------------------------------------- GPU


def show_gpu(result: GpuResult, say: Say) -> None:
    """One GPU's measured kernels, checks and engine."""
    machine = result.machine
    title = say(
        "lab.gpu_machine", device=machine.get("device", "?"), torch=machine.get("torch", "?"),
        triton=machine.get("triton", "?"),
    )  # fmt: skip
    name = "".join(c if c.isalnum() else "_" for c in str(machine.get("device", "gpu")).lower())
    if result.cases:
        rows = [(_shape(case.shape), case.shares) for case in result.cases]
        about = say("lab.gpu_about", machine=title, copy=f"{result.copy:,.0f}")
        figure = kernel_times.copy_shares(
            rows, LOOKS[theme_name()], words_of(say), about=about
        )  # fmt: skip
        chart(figure, f"lab_gpu_{name}", say)
        with st.expander(say("lab.gpu_numbers")):
            st.html(_gpu_table(result, title, say))
    facts = [
        *(
            [say("lab.gpu_engine", name=launch), f"{rate:,.0f}"]
            for launch, rate in result.engine.items()
        ),
        *(
            [say("lab.gpu_checked", name=group, count=count), f"{error:.1e}"]
            for group, count, error in result.checks
        ),
        *([say("lab.gpu_failed", name=part), why] for part, why in result.failed),
    ]
    st.html(table([title], [say("lab.gpu_fact"), say("lab.gpu_value")], facts))


def _gpu_table(result: GpuResult, title: str, say: Say) -> str:
    rows = [
        [_shape(case.shape), name, str(case.splits), f"{1e6 * seconds:,.1f}",
         f"{case.rates[name]:,.0f}", f"{case.shares[name]:.1%}"]
        for case in result.cases
        for name, seconds in case.seconds.items()
    ]  # fmt: skip
    return table([title], say("lab.gpu_head").split("|"), rows, words=2)


def _shape(shape: Mapping[str, Any]) -> str:
    heads = f"{shape['num_heads']}/{shape['num_kv_heads']} x {shape['head_dim']}"
    return f"{shape['num_seqs']} x {shape['context']:,}, {shape['block_size']}, {heads}"


def show_compiled(plain: Mapping[str, Any], say: Say) -> None:
    """Shared memory of each compiled kernel on each target, and its limit."""
    versions = plain.get("versions", {})
    kernels: Mapping[str, Mapping[str, Any]] = plain["kernels"]
    targets = list(dict.fromkeys(target for found in kernels.values() for target in found))
    rows = []
    for name, found in kernels.items():
        cells = []
        for target in targets:
            one = found.get(target)
            if one is None:
                cells.append("–")
                continue
            text = say("lab.compiled_cell", size=size_text(one["shared_bytes"]),
                       share=f"{one['shared_bytes'] / one['limit_bytes']:.0%}")  # fmt: skip
            if "registers" in one:
                text += f" · {say('lab.compiled_registers', count=one['registers'])}"
            cells.append(text)
        rows.append([name, *cells])
    caption = say("lab.compiled_caption", triton=versions.get("triton", "?"))
    st.html(table([caption], [say("lab.compiled_kernel"), *targets], rows))


def show_checks(checks: Sequence[Any], say: Say) -> None:
    """The interpreter's checks; their seconds say nothing of a GPU."""
    rows = [
        [
            say("lab.check_shape", size=c.block_size, heads=c.num_heads, kv_heads=c.num_kv_heads,
                dim=c.head_dim),
            ", ".join(map(str, c.lengths)), f"{c.difference:.1e}", f"{c.tolerance:.0e}",
            say("lab.check_right" if c.is_right else "lab.check_wrong"), f"{c.seconds:.2f}",
        ]
        for c in checks
    ]  # fmt: skip
    st.html(table([say("lab.check_caption")], say("lab.check_head").split("|"), rows))
