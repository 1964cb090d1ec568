"""Table 1 of the PagedAttention paper: what a slot weighs, and how many there are.

Derived from the models' shapes; the memory for K and V is the paper's own figure, and what
0.95 of the devices' memory leaves beside our weights stands beside it.
"""

from dataclasses import asdict, dataclass
from typing import Any

from core.capacity.hardware import GIB
from core.capacity.shapes import find_shape
from core.text import sentence
from core.workload.paper_runs import KV_GIB
from core.workload.tables import render_table

__all__ = ["Table1", "Table1Row", "table1"]

_UTILISATION = 0.95
# model, devices, GB of them all; published: GB of weights, GiB for K and V, slots in thousands
_PUBLISHED = (
    ("opt-13b", "A100", 40, 26, float(KV_GIB), 15.7),
    ("opt-66b", "4 x A100", 160, 132, 21.3, 9.7),
    ("opt-175b", "8 x A100-80GB", 640, 346, 264.0, 60.1),
)


@dataclass(frozen=True, slots=True)
class Table1Row:
    """One model; weights and memory in GB (10^9 bytes), `kv_gib` in GiB."""

    model: str
    devices: str
    memory_gb: int
    weights_gb: float
    published_weights_gb: int
    kv_gib: float
    left_gb: float
    slot_bytes: int
    slots: int
    published_kslots: float


@dataclass(frozen=True, slots=True)
class Table1:
    """All rows."""

    rows: tuple[Table1Row, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"paper": "table1", "origin": "derived", "rows": [asdict(row) for row in self.rows]}

    def to_text(self, lang: str = "en") -> str:
        """A table for the terminal."""
        header = sentence("paper.table1.header", lang).split("|")
        rows = [
            (
                row.model, row.devices, f"{row.weights_gb:.1f} / {row.published_weights_gb}",
                f"{row.kv_gib:g}", f"{row.left_gb:.1f}", f"{row.slot_bytes:,}",
                f"{row.slots:,} / {row.published_kslots}K",
            )
            for row in self.rows
        ]  # fmt: skip
        return render_table(header, rows) + "\n" + sentence("paper.table1.note", lang)


def table1() -> Table1:
    """Ours beside the published figures."""
    rows = []
    for name, devices, memory, weights, kv_gib, kslots in _PUBLISHED:
        shape = find_shape(name)
        ours = shape.weight_bytes() / 1e9
        rows.append(
            Table1Row(
                model=shape.title,
                devices=devices,
                memory_gb=memory,
                weights_gb=round(ours, 2),
                published_weights_gb=weights,
                kv_gib=kv_gib,
                left_gb=round(_UTILISATION * memory - ours, 2),
                slot_bytes=shape.slot_bytes(),
                slots=round(kv_gib * GIB / shape.slot_bytes()),
                published_kslots=kslots,
            )
        )
    return Table1(tuple(rows))
