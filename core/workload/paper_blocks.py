"""The block-size study (SOSP'23, section 7.2): what small and large blocks cost.

Each block size runs the same requests, all waiting from the start, through paged memory of the
paper's size, without a model; only memory limits how many run. Everything is averaged over the
modelled time in which a request waits. Waste and table entries are counted; throughput is modelled
from what memory lets run. The cost model knows no block size: what tiny blocks cost a kernel is
not in it, and is measured elsewhere (the block-size sweep of the attention kernels).
"""

from dataclasses import asdict, dataclass
from typing import Any

from core.errors import WorkloadError
from core.exec.cost_model import StepLoad
from core.sched.output import SchedulerOutput
from core.text import sentence
from core.workload.paper_runs import (
    CONTEXT,
    MIXES,
    Note,
    Progress,
    backlog,
    drive,
    paper_config,
    paper_cost,
    sim_engine,
)
from core.workload.requests import Workload
from core.workload.tables import render_table

__all__ = ["BLOCK_SIZES", "BlockRow", "BlockStudy", "blocks"]

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TIMES = {"alpaca": 6, "sharegpt": 1}  # short requests: more of them for as long a run
_MAX_SEQS = 1024


@dataclass(frozen=True, slots=True)
class BlockRow:
    """One block size.

    Attributes:
        waste: percent of the owned slots that hold no token.
        expected_waste: slots of a sequence's last block that are empty on average, if every
            filling of it is equally likely: (block_size - 1) / 2.
        measured_waste: what they were.
        entries: block table entries of a running request.
        running: requests, on average.
        tokens_per_second: generated; modelled.
    """

    mix: str
    block_size: int
    waste: float
    expected_waste: float
    measured_waste: float
    entries: float
    running: float
    tokens_per_second: float
    preemptions: int


@dataclass(frozen=True, slots=True)
class BlockStudy:
    """All block sizes on both mixes, and what the figures rest on."""

    rows: tuple[BlockRow, ...]
    requests: int
    seed: int
    notes: tuple[Note, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "paper": "blocks",
            "origin": "modelled",
            "requests": self.requests,
            "seed": self.seed,
            "rows": [asdict(row) for row in self.rows],
            "notes": [note.to_json() for note in self.notes],
        }

    def to_text(self, lang: str = "en") -> str:
        """A table for the terminal, and the notes."""
        header = sentence("paper.blocks.header", lang).split("|")
        rows = [
            (
                sentence(f"paper.mix.{row.mix}", lang), row.block_size, f"{row.waste:.2f}",
                f"{row.measured_waste:.2f} / {row.expected_waste:g}", f"{row.entries:.1f}",
                f"{row.running:.1f}", f"{row.tokens_per_second:.0f}", row.preemptions,
            )
            for row in self.rows
        ]  # fmt: skip
        return "\n".join([render_table(header, rows), *(n.sentence(lang) for n in self.notes)])


def blocks(
    progress: Progress | None = None,
    seed: int = 0,
    requests: int = 300,
    sizes: tuple[int, ...] = BLOCK_SIZES,
) -> BlockStudy:
    """Runs every block size on both mixes.

    Args:
        progress: is told the share that is done; may raise to stop.
        seed: of the lengths.
        sizes: block sizes, each at most 1024.
        requests: of each run on ShareGPT-like lengths; six times as many of the short ones.

    Raises:
        WorkloadError: so few requests that none ever waits.
    """
    plan = [(mix, size) for mix in MIXES for size in sizes]
    rows = []
    for number, (mix, size) in enumerate(plan):
        if progress is not None:
            progress(number / len(plan))
        rows.append(_row(mix, size, backlog(mix, _TIMES[mix] * requests, seed)))
    if progress is not None:
        progress(1.0)
    notes = (Note("lengths", {"limit": CONTEXT}), Note("blocks", {}), Note("best_blocks", {}))
    return BlockStudy(tuple(rows), requests, seed, notes)


def _row(mix: str, size: int, workload: Workload) -> BlockRow:
    written = owned = entries = running = time = 0.0
    sampled = 0

    def observe(output: SchedulerOutput, load: StepLoad, seconds: float) -> None:
        nonlocal written, owned, entries, running, time, sampled
        if not engine.scheduler.waiting:
            return
        held = engine.manager.occupancy.owned
        stored = sum(seq.num_computed_tokens for seq in engine.scheduler.holders())
        written += (stored + load.tokens) * seconds
        owned += held * size * seconds
        entries += held * seconds  # nobody shares here: an entry is a block
        running += len(engine.scheduler.running) * seconds
        time += seconds
        sampled += load.sampled

    engine, runner = sim_engine(paper_config("paged", size, _MAX_SEQS), paper_cost(), observe)
    for _ in drive(engine, runner, workload):
        pass
    if not running:
        raise WorkloadError("paper_too_few", requests=len(workload))
    return BlockRow(
        mix=mix,
        block_size=size,
        waste=round(100 * (1 - written / owned), 3),
        expected_waste=(size - 1) / 2,
        measured_waste=round((owned - written) / running, 3),
        entries=round(entries / running, 2),
        running=round(running / time, 2),
        tokens_per_second=round(sampled / time, 1),
        preemptions=engine.scheduler.num_preemptions,
    )
