"""Runs a step on a real model: memory moves, one packed forward, then the sampler.

It owns the KV tensors of one engine. It does not decide who runs or which blocks they own, and
it changes no sequence.
"""

import inspect
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from core.config import EngineConfig
from core.errors import ModelError
from core.exec import batch, cuda_graphs, gpu_memory, kernel_table, sampler
from core.exec.cuda_graphs import CudaGraphs, DecodeGraphs
from core.exec.kv_tensors import KVTensors
from core.exec.model import LoadedModel, ModelInfo
from core.request import SeqId, Sequence
from core.sched.output import (
    Candidate,
    Sampled,
    ScheduledSequence,
    SchedulerOutput,
    StepResult,
)
from kernels.dispatch import Backend, choose_backend

__all__ = ["ModelRunner", "OnLogits", "block_bytes"]

# Told the sampled sequences, before they get their token, and their logits [sampled, vocab].
OnLogits = Callable[[tuple[Sequence, ...], Tensor], None]


def block_bytes(info: ModelInfo, config: EngineConfig) -> int:
    """Bytes of one block over all layers: what `EngineConfig.sized` asks for."""
    return info.kv_shape(config.kv_cache_dtype).block_bytes(config.block_size)


class ModelRunner:
    """A model with the KV tensors of one engine.

    Args:
        loaded: the model, which other runners may share.
        config: the engine's settings; an open pool size is derived from the model.
        backend: of `kernels.dispatch`.
        on_logits: called once a step with what the sampler is about to read; it may look only.
        cuda_graphs: run decode steps as CUDA graphs; "auto" does so where it is possible.

    Raises:
        ModelError: `cuda_graphs` is True where steps can't be recorded.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        *,
        backend: Backend = "auto",
        on_logits: OnLogits | None = None,
        cuda_graphs: CudaGraphs = "auto",
    ) -> None:
        self.info = loaded.info
        self.config = config.sized(block_bytes(loaded.info, config))
        shape = loaded.info.kv_shape(config.kv_cache_dtype)
        self._model = loaded.model
        self._backend = choose_backend(backend, loaded.info.device, shape.dtype)
        self._on_logits = on_logits
        self._keeps_rows = "logits_to_keep" in inspect.signature(self._model.forward).parameters
        num_blocks, block_size = self.config.storage
        self.kv = KVTensors(
            shape,
            num_blocks=num_blocks,
            block_size=block_size,
            num_host_blocks=self.config.num_host_blocks if config.semantics == "paper" else 0,
            device=loaded.info.device,
            backend=self._backend,
        )
        if self._backend == "triton":
            kernel_table.load_table()
        self._graph_bytes = 0
        self._graphs = self._record_graphs(cuda_graphs)

    @property
    def graph_sizes(self) -> list[int]:
        """Batch sizes that run as CUDA graphs; none without them."""
        return self._graphs.sizes if self._graphs else []

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers, K and V."""
        return self.kv.block_bytes()

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a sequence."""
        return self.info.eos_token_ids

    @property
    def max_model_len(self) -> int:
        """The longest context that the model was made for."""
        return self.info.max_model_len

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        return self.info.vocab_size

    def execute(self, output: SchedulerOutput) -> StepResult:
        """Computes the scheduled tokens and samples.

        Raises:
            ModelError: the model's output is not a number.
        """
        start = time.perf_counter()
        with torch.inference_mode():
            held = self._begin_step()
            self.kv.swap_out(output.swap_out)
            self.kv.swap_in(output.swap_in)
            self.kv.copy(output.copies)
            if not output.scheduled:
                return StepResult(memory=self._memory(held))
            sampled, logits = self._logits(output.scheduled)
            forwarded = time.perf_counter()
            if self._on_logits is not None:
                self._on_logits(sampled, logits)
            samples, candidates = self._sample(logits, sampled)
        timings = {"forward": forwarded - start, "sample": time.perf_counter() - forwarded}
        return StepResult(samples, candidates, timings, self._memory(held))

    def _record_graphs(self, wanted: CudaGraphs) -> DecodeGraphs | None:
        possible = cuda_graphs.can_capture(self.kv.device, self._backend)
        if wanted is True and not possible:
            raise ModelError("no_cuda_graphs", backend=self._backend, device=str(self.kv.device))
        if wanted is False or not possible:
            return None
        before = torch.cuda.memory_allocated(self.kv.device) if self.kv.device.type == "cuda" else 0
        longest = min(self.config.max_model_len or self.max_model_len, self.max_model_len)
        try:
            with torch.inference_mode():
                graphs = DecodeGraphs(
                    self._forward,
                    self.kv,
                    most=self.config.max_num_seqs,
                    max_blocks=min(-(-longest // self.kv.block_size), self.kv.num_blocks),
                    backend=self._backend,
                    capture=cuda_graphs.capture_on_gpu(self.kv.device),
                )
        except RuntimeError as fault:  # torch names what the model does that can't be recorded
            if wanted == "auto":
                return None
            raise ModelError(
                "cuda_graphs_failed", name=self.info.name, detail=str(fault)
            ) from fault
        if self.kv.device.type == "cuda":
            self._graph_bytes = torch.cuda.memory_allocated(self.kv.device) - before
        return graphs

    def _logits(
        self, scheduled: tuple[ScheduledSequence, ...]
    ) -> tuple[tuple[Sequence, ...], Tensor]:
        """The sampled sequences and their logits, `[sampled, vocab]` float32."""
        if self._graphs is not None and self._graphs.fits(scheduled):
            sampled = tuple(item.seq for item in scheduled)
            logits = self._graphs.run(scheduled).float()
        else:
            inputs = batch.build(
                scheduled,
                num_blocks=self.kv.num_blocks,
                block_size=self.kv.block_size,
                device=self.kv.device,
                backend=self._backend,
            )
            sampled, logits = inputs.sampled, self._forward(inputs).float()
        if logits.is_cuda:
            torch.cuda.synchronize(logits.device)  # so that the two timings mean what they say
        # The largest is NaN when any is: one pass, where looking at each would take two slow ones.
        if logits.numel() and bool(logits.amax().isnan()):
            raise ModelError("model_nan", name=self.info.name, dtype=self.info.dtype)
        return sampled, logits

    def _forward(self, inputs: batch.BatchInputs) -> Tensor:
        """Logits of the sampled rows, `[sampled, vocab]`; waits for nothing."""
        keep = {"logits_to_keep": inputs.logits_index} if self._keeps_rows else {}
        output = self._model(
            input_ids=inputs.input_ids[None],
            position_ids=inputs.positions[None],
            use_cache=False,
            kv_tensors=self.kv,
            batch_inputs=inputs,
            **keep,
        )
        logits: Tensor = output.logits[0]
        return logits if self._keeps_rows else logits[inputs.logits_index]

    def _sample(
        self, logits: Tensor, sampled: tuple[Sequence, ...]
    ) -> tuple[dict[SeqId, tuple[Sampled, ...]], dict[SeqId, tuple[Candidate, ...]]]:
        rows: list[sampler.Row] = []
        beams: list[sampler.Row] = []
        for source, seq in enumerate(sampled):
            wide = seq.request.params.beam_width > 1
            (beams if wide else rows).extend(sampler.rows_for(source, seq, self.config.seed))
        samples: dict[SeqId, tuple[Sampled, ...]] = {}
        for row, token in zip(rows, sampler.sample(logits, rows), strict=True):
            samples[row.seq.seq_id] = (*samples.get(row.seq.seq_id, ()), token)
        return samples, self._beams(logits, beams)

    def _beams(self, logits: Tensor, rows: list[sampler.Row]) -> dict[SeqId, tuple[Candidate, ...]]:
        """Continuations of every beam; more than two a beam where several tokens can end one."""
        if not rows:
            return {}
        counts = [
            row.params.beam_width
            * max(2, 1 + (0 if row.params.ignore_eos else len(self.eos_token_ids)))
            for row in rows
        ]
        found = sampler.beam_candidates(logits, rows, max(counts))
        return {
            row.seq.seq_id: best[:count]
            for row, best, count in zip(rows, found, counts, strict=True)
        }

    def _begin_step(self) -> int:
        """Bytes allocated on the GPU before the step; 0 without one."""
        if self.kv.device.type != "cuda":
            return 0
        torch.cuda.reset_peak_memory_stats(self.kv.device)
        return torch.cuda.memory_allocated(self.kv.device)

    def _memory(self, before: int) -> dict[str, int]:
        """Bytes by part; on a GPU see `gpu_memory.parts`."""
        held = {"kv_pool": self.kv.num_bytes, "weights": self.info.weight_bytes}
        if self.kv.device.type == "cuda":
            held = gpu_memory.parts(
                gpu_memory.read(self.kv.device), **held, graphs=self._graph_bytes, before=before
            )
        return held | {"process": _process_bytes()}


def _process_bytes() -> int:
    """Memory that the process holds now; 0 where the system has no /proc to tell it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
