"""The address space over time: a column a step, a row a run of slots, a colour an owner.

A pure function of a trace, paged or contiguous. It owns what a slot's state is called and how it
is painted. A written slot has its owner's colour, a slot that is held but empty a pale one of it;
a slot that several sequences share has the first holder's colour. A large memory or a long run is
sampled evenly, and the figure says how.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from app.figures.frame import Kind, Words, empty, plain, source
from app.figures.look import Look
from core.trace import events as ev
from core.trace.snapshot import Layout, Snapshot

__all__ = ["Cell", "address_map", "columns"]

_CELLS, _ROWS = 30_000, 256
_FREE, _CACHED, _LOST, _OWNERS = 0, 1, 2, 3
_HEIGHT = 420
_PALE = 0.34  # of the owner's colour, on the ground


@dataclass(frozen=True, slots=True)
class Cell:
    """One slot's state: what it is, and whose."""

    state: str  # written, held, spare, cached, lost, free
    owner: str = ""  # a request's id


def address_map(
    layout: Layout,
    events: Iterable[ev.Event],
    num_steps: int,
    look: Look,
    words: Words,
    *,
    about: str,
    kind: Kind,
) -> go.Figure:
    """Who holds which slot, step by step.

    Args:
        layout: of the trace's header.
        events: of the trace.
        num_steps: whole steps in it.
        look: colours.
        words: of the caller's catalogue.
        about: what the run is.
        kind: of the run.
    """
    slots = layout.num_blocks * layout.block_size
    row_size = -(-slots // _ROWS)
    addresses = range(0, slots, row_size)
    stride = max(1, -(-num_steps * len(addresses) // _CELLS))
    sampled, labels = columns(layout, events, addresses, stride)
    owners = {owner: place for place, owner in enumerate(labels)}
    figure = empty(look, words("chart_map"), words("step"), words("address"), _HEIGHT)
    colours = _colours(look)
    figure.add_heatmap(
        x=[step for step, _ in sampled], y=list(addresses),
        z=_transposed([[_code(cell, owners, look) for cell in cells] for _, cells in sampled]),
        text=_transposed([[_text(cell, labels, words) for cell in cells] for _, cells in sampled]),
        colorscale=_scale(colours), zmin=-0.5, zmax=len(colours) - 0.5, showscale=False,
        hovertemplate=words("step") + " %{x}, %{y}: %{text}<extra></extra>",
    )  # fmt: skip
    _legend(figure, labels, colours, look, words)
    figure.update_layout(hovermode="closest")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(showgrid=False, rangemode="normal")
    each = words("map_each", slots=row_size, steps=stride)
    return source(figure, look, f"{about} · {each}", kind)


def columns(
    layout: Layout, events: Iterable[ev.Event], addresses: Sequence[int], stride: int
) -> tuple[list[tuple[int, list[Cell]]], dict[str, str]]:
    """The cells at `addresses` after every `stride`-th step, and the requests' labels by id."""
    snapshot = Snapshot(layout)
    labels: dict[str, str] = {}
    sampled: list[tuple[int, list[Cell]]] = []
    for event in events:
        snapshot.apply(event)
        if isinstance(event, ev.RequestArrived):
            labels[event.request_id] = event.label
        elif isinstance(event, ev.StepEnded) and (event.step - 1) % stride == 0:
            sampled.append((event.step, _column(snapshot, addresses)))
    return sampled, labels


def _column(snapshot: Snapshot, addresses: Sequence[int]) -> list[Cell]:
    if snapshot.layout.allocator == "contiguous":
        cells = _contiguous(snapshot)
        return [cells.get(address, _FREE_CELL) for address in addresses]
    size = snapshot.layout.block_size
    owners = {
        block: snapshot.sequences[holders[0]].request_id
        for block, holders in snapshot.owners().items()
    }
    return [
        _paged(snapshot, owners, address // size, address % size) for address in addresses
    ]  # fmt: skip


_FREE_CELL, _CACHED_CELL = Cell("free"), Cell("cached")


def _paged(snapshot: Snapshot, owners: Mapping[int, str], block: int, offset: int) -> Cell:
    if block in owners:
        is_written = offset < len(snapshot.slots[block])
        return Cell("written" if is_written else "held", owners[block])
    return _CACHED_CELL if snapshot.hashes[block] else _FREE_CELL


def _contiguous(snapshot: Snapshot) -> dict[int, Cell]:
    cells: dict[int, Cell] = {}
    for region in snapshot.regions.values():
        sequence = snapshot.sequences.get(region.seq_id)
        stored = sequence.stored if sequence else 0
        written, held = Cell("written", region.request_id), Cell("held", region.request_id)
        spare, lost = Cell("spare", region.request_id), Cell("lost")
        for offset in range(region.size):
            if offset >= region.length:
                cell = lost
            elif offset < stored:
                cell = written
            else:
                cell = held if sequence else spare
            cells[region.start + offset] = cell
    return cells


# ----------------------------------------------------------------------------------- painting


def _colours(look: Look) -> list[str]:
    pale = [_mixed(colour, look.ground, _PALE) for colour in look.lines]
    return [look.part("free"), look.part("cached"), look.part("hole"), *look.lines, *pale]


def _code(cell: Cell, owners: Mapping[str, int], look: Look) -> int:
    if cell.state in ("free", "cached", "lost"):
        return {"free": _FREE, "cached": _CACHED, "lost": _LOST}[cell.state]
    place = owners[cell.owner] % len(look.lines)
    return _OWNERS + place + (0 if cell.state == "written" else len(look.lines))


def _text(cell: Cell, labels: Mapping[str, str], words: Words) -> str:
    owner = plain(labels.get(cell.owner, cell.owner))
    state = "held" if cell.state == "spare" else cell.state
    text = words(f"map_{state}", owner=owner)
    return f"{text} ({words('map_spare')})" if cell.state == "spare" else text


def _scale(colours: Sequence[str]) -> list[tuple[float, str]]:
    """Steps, not a gradient: code k is painted in colour k."""
    count = len(colours)
    return [
        (edge / count, colour) for k, colour in enumerate(colours) for edge in (k, k + 1)
    ]  # fmt: skip


def _legend(
    figure: go.Figure, labels: Mapping[str, str], colours: Sequence[str], look: Look, words: Words
) -> None:
    """Entries only: a map has no legend of its own."""
    named = list(labels.values())[: len(look.lines)]
    entries = [(plain(label), colours[_OWNERS + k]) for k, label in enumerate(named)]
    if len(labels) > len(named):
        entries.append((f"+{len(labels) - len(named)} {words('map_more')}", look.muted))
    entries.append((words("map_empty"), colours[_OWNERS + len(look.lines)]))
    codes = {code for row in figure.data[0].z for code in row}
    for code, name in ((_CACHED, "cached"), (_LOST, "lost"), (_FREE, "free")):
        if code in codes:
            entries.append((words(f"map_{name}"), colours[code]))
    for name, colour in entries:
        figure.add_scatter(
            x=[None], y=[None], mode="markers", name=name, hoverinfo="skip",
            marker={"size": 10, "symbol": "square", "color": colour},
        )  # fmt: skip


def _transposed(rows: list[list[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _mixed(colour: str, ground: str, share: float) -> str:
    """A colour laid thinly over the ground.

    >>> _mixed("#000000", "#ffffff", 0.4)
    '#999999'
    """
    pairs = zip(bytes.fromhex(colour[1:]), bytes.fromhex(ground[1:]), strict=True)
    return "#" + "".join(f"{round(a * share + b * (1 - share)):02x}" for a, b in pairs)
