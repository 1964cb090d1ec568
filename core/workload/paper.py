"""The PagedAttention paper (SOSP'23), reproduced: each call makes our figures beside its own.

Every result has `to_json()` (plain values) and `to_text(lang)`. Table 1 is derived; figure 2 and
the block-size study are modelled (real scheduler and memory, no model, a cost model's clock); what
sharing saves is counted in runs without a model for samples, on a real one for beams.
"""

from collections.abc import Callable, Mapping
from typing import Any

from core.machine import processor_name
from core.workload.paper_blocks import blocks
from core.workload.paper_figure2 import figure2
from core.workload.paper_sharing import sharing
from core.workload.paper_table1 import table1

__all__ = ["REPRODUCTIONS", "blocks", "figure2", "record", "sharing", "table1"]

REPRODUCTIONS: Mapping[str, Callable[..., Any]] = {
    "table1": table1,
    "figure2": figure2,
    "sharing": sharing,
    "blocks": blocks,
}


def record(result: Any, command: str) -> dict[str, Any]:
    """A result's plain values with what repeats it, and the machine on which it was made."""
    return {**result.to_json(), "command": command, "machine": processor_name()}
