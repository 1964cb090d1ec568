"""Decode steps as CUDA graphs: the whole forward launched at once instead of kernel by kernel.

A decode step launches hundreds of small kernels, and launching costs the CPU more time than the
GPU needs to run them. A graph records them once and replays them with one call. What is recorded
are addresses, so every step's tokens, slots and block tables are written into the same buffers,
and a batch is padded to the next recorded size: a padding row stores nothing and attends to
nothing.

It owns the buffers and the recordings. It does not know sampling, and it leaves any step that is
not all decodes to the ordinary path.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from core.exec import batch
from core.exec.kv_tensors import KVTensors
from core.sched.output import ScheduledSequence
from kernels import dispatch

__all__ = ["Capture", "CudaGraphs", "DecodeGraphs", "batch_sizes", "can_capture", "capture_on_gpu"]

CudaGraphs = Literal["auto"] | bool
# Records what a call does and gives a function that does it again, with the same tensors.
Capture = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]


def can_capture(device: torch.device | str, backend: dispatch.RealBackend) -> bool:
    """Whether steps can be recorded: on a CUDA device, with kernels that never ask the host."""
    return torch.device(device).type == "cuda" and backend == "triton"


def batch_sizes(most: int) -> list[int]:
    """The recorded sizes: powers of two up to 16, then every 16.

    >>> batch_sizes(40)
    [1, 2, 4, 8, 16, 32, 40]
    """
    sizes = {1, 2, 4, 8, *range(16, most + 1, 16), most}
    return sorted(size for size in sizes if size <= most)


def capture_on_gpu(device: torch.device | None = None) -> Capture:
    """Records CUDA graphs that share one pool of memory; None is the current device."""
    pool = torch.cuda.graph_pool_handle()

    def capture(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        with torch.cuda.device(device):
            side: Any = cast(Any, torch.cuda.Stream)()  # torch leaves it untyped
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):  # kernels are compiled and workspaces made beforehand
                    run()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the GPU meanwhile: only this one's calls are recorded.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                result = run()

        def replay() -> Tensor:
            with torch.cuda.device(device):
                graph.replay()
            return result

        return replay

    return capture


@dataclass(frozen=True, slots=True)
class _Recording:
    inputs: batch.BatchInputs
    replay: Callable[[], Tensor]


class DecodeGraphs:
    """Recorded forwards of one engine, one for each batch size.

    Args:
        forward: logits of a step, `[sampled, vocab]`; must not wait for the device.
        kv: the engine's cache.
        most: decodes of the largest step.
        max_blocks: blocks of the longest block table.
        backend: of `kernels.dispatch`; not "torch".
        capture: what records; called within `torch.inference_mode`.
    """

    def __init__(
        self,
        forward: Callable[[batch.BatchInputs], Tensor],
        kv: KVTensors,
        *,
        most: int,
        max_blocks: int,
        backend: dispatch.Backend,
        capture: Capture,
    ) -> None:
        self._kv = kv
        self._recordings: dict[int, _Recording] = {}
        largest: dispatch.KernelPlan | None = None
        self._input_ids = torch.zeros(most, dtype=torch.int64, device=kv.device)
        self._positions = torch.zeros(most, dtype=torch.int64, device=kv.device)
        for size in reversed(batch_sizes(most)):  # the largest first: its memory serves the others
            plan = dispatch.prepare_buffers(
                size, max_blocks, num_blocks=kv.num_blocks, block_size=kv.block_size,
                device=kv.device, backend=backend, within=largest,
            )  # fmt: skip
            largest = largest or plan
            self._recordings[size] = self._record(forward, plan, capture)
        self._sizes = sorted(self._recordings)

    @property
    def sizes(self) -> list[int]:
        """The recorded batch sizes."""
        return list(self._sizes)

    def fits(self, scheduled: Sequence[ScheduledSequence]) -> bool:
        """Whether a step is nothing but decodes, not more of them than were recorded."""
        return 0 < len(scheduled) <= self._sizes[-1] and all(
            item.num_tokens == 1 and item.samples for item in scheduled
        )

    def run(self, scheduled: Sequence[ScheduledSequence]) -> Tensor:
        """Logits of a step that fits, `[sampled, vocab]`; overwritten by the next run.

        Raises:
            ValueError: a block table that is too short or names a block outside the pool.
        """
        packed = batch.pack(scheduled, self._kv.block_size)
        count = len(scheduled)
        recording = self._recordings[next(size for size in self._sizes if size >= count)]
        self._input_ids[:count].copy_(torch.tensor(packed.token_ids))
        self._positions[:count].copy_(torch.from_numpy(packed.positions))
        dispatch.refill(
            recording.inputs.plan,
            torch.from_numpy(packed.slots),
            torch.from_numpy(packed.tables),
            packed.seq_lens,
        )
        return recording.replay()[:count]

    def _record(
        self,
        forward: Callable[[batch.BatchInputs], Tensor],
        plan: dispatch.KernelPlan,
        capture: Capture,
    ) -> _Recording:
        size = plan.num_tokens
        inputs = batch.BatchInputs(
            input_ids=self._input_ids[:size],
            positions=self._positions[:size],
            plan=plan,
            logits_index=torch.arange(size, device=self._kv.device),
            sampled=(),
        )
        return _Recording(inputs, capture(lambda: forward(inputs)))
