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
from core.exec import batch, sampler
from core.exec.kv_tensors import KVTensors
from core.exec.model import LoadedModel, ModelInfo
from core.request import SeqId, Sequence
from core.sched.output import Candidate, Sampled, SchedulerOutput, StepResult
from kernels.dispatch import Backend

__all__ = ["ModelRunner", "OnLogits", "block_bytes"]

# Told the sampled sequences, before they get their token, and their logits [sampled, vocab].
OnLogits = Callable[[tuple[Sequence, ...], Tensor], None]


def block_bytes(info: ModelInfo, block_size: int) -> int:
    """Bytes of one block over all layers: what `EngineConfig.sized` asks for."""
    return info.kv_shape.block_bytes(block_size)


class ModelRunner:
    """A model with the KV tensors of one engine.

    Args:
        loaded: the model, which other runners may share.
        config: the engine's settings; an open pool size is derived from the model.
        backend: of `kernels.dispatch`.
        on_logits: called once a step with what the sampler is about to read; it may look only.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        *,
        backend: Backend = "auto",
        on_logits: OnLogits | None = None,
    ) -> None:
        self.info = loaded.info
        self.config = config.sized(block_bytes(loaded.info, config.block_size))
        self._model = loaded.model
        self._backend = backend
        self._on_logits = on_logits
        self._keeps_rows = "logits_to_keep" in inspect.signature(self._model.forward).parameters
        num_blocks, block_size = self.config.storage
        self.kv = KVTensors(
            loaded.info.kv_shape,
            num_blocks=num_blocks,
            block_size=block_size,
            num_host_blocks=self.config.num_host_blocks if config.semantics == "paper" else 0,
            device=loaded.info.device,
            backend=backend,
        )

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
            self.kv.swap_out(output.swap_out)
            self.kv.swap_in(output.swap_in)
            self.kv.copy(output.copies)
            if not output.scheduled:
                return StepResult(memory=self._memory())
            inputs = batch.build(
                output.scheduled,
                num_blocks=self.kv.num_blocks,
                block_size=self.kv.block_size,
                device=self.kv.device,
                backend=self._backend,
            )
            logits = self._forward(inputs)
            forwarded = time.perf_counter()
            if self._on_logits is not None:
                self._on_logits(inputs.sampled, logits)
            samples, candidates = self._sample(logits, inputs)
        timings = {"forward": forwarded - start, "sample": time.perf_counter() - forwarded}
        return StepResult(samples, candidates, timings, self._memory())

    def _forward(self, inputs: batch.BatchInputs) -> Tensor:
        """Logits of the sampled rows, `[sampled, vocab]`, float32."""
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
        logits = logits if self._keeps_rows else logits[inputs.logits_index]
        logits = logits.float()
        if logits.is_cuda:
            torch.cuda.synchronize(logits.device)  # so that the two timings mean what they say
        if bool(logits.isnan().any()):
            raise ModelError("model_nan", name=self.info.name, dtype=self.info.dtype)
        return logits

    def _sample(
        self, logits: Tensor, inputs: batch.BatchInputs
    ) -> tuple[dict[SeqId, tuple[Sampled, ...]], dict[SeqId, tuple[Candidate, ...]]]:
        rows: list[sampler.Row] = []
        beams: list[sampler.Row] = []
        for source, seq in enumerate(inputs.sampled):
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

    def _memory(self) -> dict[str, int]:
        return {
            "kv_pool": self.kv.num_bytes,
            "weights": self.info.weight_bytes,
            "process": _process_bytes(),
        }


def _process_bytes() -> int:
    """Memory that the process holds now; 0 where the system has no /proc to tell it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
