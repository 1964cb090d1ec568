"""Where an engine's memory goes while a step's forward runs, without folding a trace.

The same states as `core.trace.metrics` tells from events (a test compares the two), read from the
memory itself, at little cost: a simulation asks in every step. It changes nothing.
"""

from core.cache.contiguous import RegionManager
from core.cache.manager import BlockManager
from core.engine import Engine
from core.exec.cost_model import StepLoad
from core.sched.output import SchedulerOutput

__all__ = ["slots_by_state"]

_Step = tuple[SchedulerOutput, StepLoad]


def slots_by_state(
    engine: Engine, step: _Step | None = None, *, keep_free: bool = True
) -> tuple[int, ...]:
    """Slots that are tokens, reserved, unused, tail, cached, hole and free.

    Args:
        engine: in the middle of a step, before anything is released, or idle.
        step: the step's output and load; None when no step runs.
        keep_free: False counts no free slots, for a pool without an end.
    """
    if isinstance(engine.manager, RegionManager):
        return _in_regions(engine, engine.manager, step)
    assert isinstance(engine.manager, BlockManager)
    return _in_blocks(engine, engine.manager, step, keep_free)


def _in_blocks(
    engine: Engine, manager: BlockManager, step: _Step | None, keep_free: bool
) -> tuple[int, ...]:
    pool, size = manager.pool, engine.config.block_size
    owned = pool.num_usable - pool.num_free
    written = reserved = 0
    if step is not None:
        output, load = step
        written = _written(engine, manager, step, owned)
        if load.sampled < load.sequences:
            reserved = _still_to_write(manager, output, size)
    cached = pool.num_cached_free
    free = pool.num_free - cached if keep_free else 0
    tail = owned * size - written - reserved
    return written, reserved, 0, tail, cached * size, 0, free * size


def _written(engine: Engine, manager: BlockManager, step: _Step, owned: int) -> int:
    """Slots that hold a token after this step's forward; a shared one counts once."""
    output, load = step
    shared = sum(map(len, manager.tables.values())) - owned
    if engine.config.semantics == "paper" and shared:
        return manager.written_slots(engine.scheduler.holders()) + load.tokens
    written = load.context
    if load.sequences < len(manager.tables):  # somebody holds blocks and computes nothing
        busy = {item.seq.seq_id for item in output.scheduled}
        holders = engine.scheduler.holders()
        written += sum(seq.num_computed_tokens for seq in holders if seq.seq_id not in busy)
    return written - shared * engine.config.block_size  # "v1" shares full blocks only


def _still_to_write(manager: BlockManager, output: SchedulerOutput, block_size: int) -> int:
    """Slots in blocks of half-computed prompts that the rest of the prompt will fill."""
    total = 0
    for item in output.scheduled:
        if not item.samples:
            capacity = len(manager.tables[item.seq.seq_id]) * block_size
            total += min(len(item.seq.token_ids), capacity) - item.start - item.num_tokens
    return total


def _in_regions(engine: Engine, manager: RegionManager, step: _Step | None) -> tuple[int, ...]:
    """Answers are known to be as long as `max_tokens` says, so what is reserved is as well."""
    ends = {i.seq.seq_id: i.start + i.num_tokens for i in step[0].scheduled} if step else {}
    limit = engine.scheduler.max_model_len
    written = reserved = unused = rounding = 0
    for seq in engine.scheduler.holders():
        region = manager.regions[seq.seq_id]
        end = ends.get(seq.seq_id, seq.num_computed_tokens)
        last = min(seq.num_prompt_tokens + seq.request.params.max_tokens, limit) - 1
        written += end
        reserved += last - end
        unused += region.length - last
        rounding += region.size - region.length
    hole = _too_small(engine, manager)
    return written, reserved, unused, 0, 0, rounding + hole, manager.space.num_free - hole


def _too_small(engine: Engine, manager: RegionManager) -> int:
    """Free slots in pieces too small for whoever comes next."""
    space, waiting = manager.space, engine.scheduler.waiting
    if manager.config.reserve == "max":
        limit = engine.scheduler.max_model_len
        return sum(size for _, size in space.pieces() if size < limit)
    if len(waiting) and manager.reservation(waiting.first()) > space.largest:
        return space.num_free
    return 0
