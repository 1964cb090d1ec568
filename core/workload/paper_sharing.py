"""How many blocks sharing saves, for parallel samples and beams (SOSP'23, figure 15).

Saved = (entries of all block tables - different blocks) / entries, both summed over the steps of a
run: without sharing, every entry would be a block. Samples run without a model, because what they
say does not change what they share. Beams fork and die by the probabilities of real tokens, so
they need a real model; the caller builds its engine.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from core.config import EngineConfig
from core.engine import Engine
from core.request import SamplingParams
from core.text import sentence
from core.workload.paper_runs import (
    BLOCK_SIZE,
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

__all__ = ["BuildEngine", "Sharing", "SharingRow", "sharing", "table_entries"]

BuildEngine = Callable[[EngineConfig], Engine]

_WIDTHS = (2, 4, 6)
# mix, kind: published percentages at widths 2, 4 and 6; of ShareGPT only the range is published
_PUBLISHED: dict[tuple[str, str], tuple[str, str, str]] = {
    ("alpaca", "samples"): ("6.09", "8.53", "9.79"),
    ("alpaca", "beams"): ("37.56", "53.13", "55.16"),
    ("sharegpt", "samples"): ("16.2–30.5",) * 3,
    ("sharegpt", "beams"): ("44.3–66.3",) * 3,
}
_BEAM_REQUESTS = {"alpaca": 12, "sharegpt": 4}  # a real model on a processor is slow
_TEXT = (
    "The harbour wakes before the town does. Nets are folded, engines are tried, and the first "
    "boat leaves while the lamps on the quay are still burning. An old man counts the crates and "
    "writes the numbers into a book whose cover has been mended twice. How does a tide know when "
    "to turn? The moon draws the water towards itself, the earth turns below, and twice a day the "
    "sea climbs the same stones. Explain to a child why the sky is blue, and why it turns red in "
    "the evening. List five things to take along for a walk in the mountains, and say what each "
    "of them is good for. A baker keeps three clocks: one for the dough, one for the oven, and one "
    "for herself, which is always late. In winter the bread rises slowly, so she begins an hour "
    "earlier and leaves the door to the oven ajar. Write a short letter to a neighbour whose tree "
    "throws its shade on your beans. The library of the village has nine hundred books and one "
    "reader who has read them all; he now reads them again in the order of their colours. What is "
    "the difference between a comet and a meteor? Describe how a bicycle stays upright, and what "
    "happens when it is pushed without a rider. The train to the coast takes four hours, crosses "
    "eleven bridges, and stops wherever somebody raises a hand. Compare tea and coffee in a few "
    "sentences. A good map leaves out almost everything, and that is why it can be read. "
)


@dataclass(frozen=True, slots=True)
class SharingRow:
    """One run: `saved` percent of the blocks; `origin` is "simulated" or "real model"."""

    mix: str
    kind: str
    width: int
    saved: float
    published: str
    origin: str
    requests: int
    steps: int


@dataclass(frozen=True, slots=True)
class Sharing:
    """All runs, and what they rest on."""

    rows: tuple[SharingRow, ...]
    seed: int
    notes: tuple[Note, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "paper": "sharing",
            "block_size": BLOCK_SIZE,
            "seed": self.seed,
            "rows": [asdict(row) for row in self.rows],
            "notes": [note.to_json() for note in self.notes],
        }

    def to_text(self, lang: str = "en") -> str:
        """A table for the terminal, and the notes."""
        header = sentence("paper.sharing.header", lang).split("|")
        rows = [
            (
                sentence(f"paper.mix.{row.mix}", lang), sentence(f"paper.{row.kind}", lang),
                row.width, f"{row.saved:.2f}", row.published,
                sentence(f"paper.origin.{row.origin}", lang), row.requests,
            )
            for row in self.rows
        ]  # fmt: skip
        return "\n".join([render_table(header, rows), *(n.sentence(lang) for n in self.notes)])


def sharing(
    build: BuildEngine | None = None,
    progress: Progress | None = None,
    seed: int = 0,
    requests: int = 400,
    mixes: Iterable[str] = MIXES,
    spread: float = 1.0,
) -> Sharing:
    """Measures what sharing saves.

    Args:
        build: makes an engine with a real model; without one there are no beams.
        progress: is told the share that is done; may raise to stop.
        seed: of the lengths.
        requests: of each run of samples; beams take 12 and 4.
        mixes: "alpaca", "sharegpt".
        spread: standard deviation of the lengths, in means.
    """
    mixes = tuple(mixes)
    plan = [(mix, "samples", width) for mix in mixes for width in _WIDTHS]
    if build is not None:
        plan += [(mix, "beams", width) for mix in mixes for width in _WIDTHS]
    rows = []
    for number, (mix, kind, width) in enumerate(plan):
        if progress is not None:
            progress(number / len(plan))
        if kind == "samples":
            run = _samples(backlog(mix, requests, seed, spread), width)
        else:
            assert build is not None
            run = _beams(build, backlog(mix, _BEAM_REQUESTS[mix], seed, spread), width)
        entries, blocks, steps, count = run
        origin = "simulated" if kind == "samples" else "real_model"
        published = _PUBLISHED[mix, kind][_WIDTHS.index(width)]
        saved = round(100 * (1 - blocks / entries), 3) if entries else 0.0
        rows.append(SharingRow(mix, kind, width, saved, published, origin, count, steps))
    if progress is not None:
        progress(1.0)
    return Sharing(tuple(rows), seed, _notes(build))


def table_entries(engine: Engine) -> tuple[int, int]:
    """Entries of all block tables now, and how many different blocks they name."""
    entries = sum(len(engine.manager.block_ids(seq)) for seq in _holders(engine))
    return entries, engine.manager.occupancy.owned


def _holders(engine: Engine) -> list[Any]:
    return [s for s in engine.scheduler.holders() if engine.manager.holds(s.seq_id)]


def _samples(workload: Workload, width: int) -> tuple[int, int, int, int]:
    engine, runner = sim_engine(paper_config(), paper_cost())
    entries = blocks = steps = 0
    for _ in drive(engine, runner, workload, width):
        now = table_entries(engine)
        entries, blocks, steps = entries + now[0], blocks + now[1], steps + 1
    return entries, blocks, steps, len(workload)


def _beams(build: BuildEngine, workload: Workload, width: int) -> tuple[int, int, int, int]:
    """All requests together, in a memory that holds them all."""
    need = sum(-(-request.total_tokens // BLOCK_SIZE) * width for request in workload.requests)
    config = EngineConfig(
        semantics="paper",
        block_size=BLOCK_SIZE,
        num_blocks=int(need * 1.1) + 16,
        max_num_seqs=max(width, len(workload) * width),
        max_num_batched_tokens=CONTEXT * 2,
        num_host_blocks=0,
    )
    engine = build(config)
    text = engine.codec.encode(_TEXT)
    for number, request in enumerate(workload.requests):
        params = SamplingParams(max_tokens=request.output_tokens, beam_width=width, ignore_eos=True)
        start = number * len(text) // len(workload)
        prompt = [text[(start + i) % len(text)] for i in range(request.prompt_tokens)]
        engine.add_request(prompt, params)
    entries = blocks = steps = 0
    for record in engine.run():
        if record.error:
            raise RuntimeError(record.error)
        now = table_entries(engine)
        entries, blocks, steps = entries + now[0], blocks + now[1], steps + 1
    return entries, blocks, steps, len(workload)


def _notes(build: BuildEngine | None) -> tuple[Note, ...]:
    notes = [
        Note("saved", {}),
        Note("lengths", {"limit": CONTEXT}),
        Note("samples", {}),
        Note("short_prompts", {}),
    ]
    return (*notes, Note("beams" if build is not None else "no_beams", {}))
