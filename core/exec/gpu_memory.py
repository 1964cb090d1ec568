"""A GPU's memory: how much of it the KV cache may have, and who holds the rest.

The budget is found as vLLM finds it: run the largest step once, see what torch held at its peak,
and give the KV cache what `gpu_memory_utilization` of the whole leaves over. Everything else on
the GPU (the driver's context, other processes) counts as taken. It knows no requests and samples
nothing itself: the step to run is made here, the runner runs it.
"""

from dataclasses import dataclass

import torch

from core.config import EngineConfig
from core.request import Request, SamplingParams
from core.sched.output import ScheduledSequence, SchedulerOutput

__all__ = ["GpuMemory", "kv_budget", "largest_step", "parts", "read"]


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Bytes of one device at one moment.

    Attributes:
        total: of the device.
        free: that nobody holds, as the driver says.
        allocated: of torch's tensors, in this process.
        reserved: that torch took from the driver for them.
        peak: the most that was allocated since the last reset.
    """

    total: int
    free: int
    allocated: int
    reserved: int
    peak: int

    @property
    def non_torch(self) -> int:
        """Held by anything but this process's torch: contexts, libraries, other processes."""
        return self.total - self.free - self.reserved


def read(device: torch.device | str) -> GpuMemory:
    """What torch and the driver report now."""
    free, total = torch.cuda.mem_get_info(device)
    return GpuMemory(
        total=total,
        free=free,
        allocated=torch.cuda.memory_allocated(device),
        reserved=torch.cuda.memory_reserved(device),
        peak=torch.cuda.max_memory_allocated(device),
    )


def kv_budget(memory: GpuMemory, utilization: float, peak: int) -> int:
    """Bytes that the KV cache may have; not positive when there is no room.

    Args:
        memory: read when the trial step is over.
        utilization: share of the device that the engine may use.
        peak: bytes of torch's tensors at the trial's worst, without its KV cache.
    """
    return int(memory.total * utilization) - memory.non_torch - peak


def parts(
    memory: GpuMemory, *, kv_pool: int, weights: int, graphs: int, before: int
) -> dict[str, int]:
    """A step's memory by part; kv_pool, weights, graphs and other are together all allocated.

    Args:
        memory: read at the step's end.
        kv_pool: bytes of the KV cache.
        weights: bytes of the model.
        graphs: bytes that recording the graphs left allocated.
        before: bytes allocated when the step began; what it needed beyond is its activations.
    """
    return {
        "kv_pool": kv_pool,
        "weights": weights,
        "graphs": graphs,
        "other": memory.allocated - kv_pool - weights - graphs,
        "allocated": memory.allocated,
        "reserved": memory.reserved,
        "activation_peak": memory.peak - before,
        "non_torch": memory.non_torch,
        "device": memory.total,
    }


def largest_step(config: EngineConfig, max_model_len: int) -> tuple[EngineConfig, SchedulerOutput]:
    """A step of `max_num_batched_tokens` new tokens, and settings with just the pool for it.

    The tokens are dealt to as many sequences as may run, all sampled: the most logits that a step
    can have.
    """
    tokens = min(config.max_num_batched_tokens, config.max_num_seqs * max_model_len)
    count = min(config.max_num_seqs, tokens)
    items = []
    next_block = 0
    block_size = 1 if config.is_contiguous else config.block_size
    params = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=1)
    for index in range(count):
        length = tokens // count + (index < tokens % count)
        blocks = -(-length // block_size)
        request = Request.make(f"trial-{index}", [0] * length, params)
        table = tuple(range(next_block, next_block + blocks))
        items.append(ScheduledSequence(request.sequences[0], "prefill", 0, length, table, True))
        next_block += blocks
    pool = EngineConfig(
        block_size=block_size,
        num_blocks=max(2, next_block),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        num_host_blocks=0,
        kv_cache_dtype=config.kv_cache_dtype,
    )
    return pool, SchedulerOutput(1, tuple(items))
