"""Makes an engine for a loaded model: the one place where settings, model and tensors meet."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path

import torch

from core.config import EngineConfig
from core.engine import Engine
from core.exec.model import LoadedModel
from core.exec.runner import ModelRunner, OnLogits, block_bytes
from kernels.dispatch import Backend

__all__ = ["build_engine", "describe", "num_threads", "processor_name", "use_threads"]


def build_engine(
    loaded: LoadedModel,
    config: EngineConfig,
    *,
    backend: Backend = "auto",
    record: bool = True,
    title: Mapping[str, str] | None = None,
    first_step: int = 0,
    on_logits: OnLogits | None = None,
) -> Engine:
    """An engine with its own KV tensors over a shared model.

    Args:
        loaded: the model, which other engines may share.
        config: an open pool size becomes what `EngineConfig.sized` makes of it.
        backend: of `kernels.dispatch`.
        record: keep a trace.
        title: what the run shows, by language.
        first_step: see `Engine`.
        on_logits: see `ModelRunner`.

    Raises:
        ConfigError: the memory holds fewer than two blocks.
    """
    size = block_bytes(loaded.info, config.block_size)
    sized = config.sized(size)
    runner = ModelRunner(loaded, sized, backend=backend, on_logits=on_logits)
    return Engine(
        sized,
        runner,
        loaded.codec,
        model=describe(loaded) | {"block_bytes": size, "backend": backend},
        record=record,
        title=title,
        first_step=first_step,
    )


def describe(loaded: LoadedModel) -> dict[str, object]:
    """What a trace's header says of the model and of what measured its times."""
    info = loaded.info
    return {
        "name": info.name,
        "architecture": info.architecture,
        "layers": info.layers,
        "heads": info.heads,
        "kv_heads": info.kv_heads,
        "head_dim": info.head_dim,
        "vocab": info.vocab_size,
        "max_model_len": info.max_model_len,
        "dtype": info.dtype,
        "device": info.device,
        "threads": num_threads(),
        "processor": processor_name(),
        "torch": torch.__version__,
    }


def num_threads() -> int:
    """Threads of a forward that this thread runs."""
    return torch.get_num_threads()


def use_threads(count: int) -> None:
    """Sets the threads of the forwards that this thread runs: torch keeps the count by thread."""
    torch.set_num_threads(count)


def processor_name() -> str:
    """The processor's name; Linux hides it in a file."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores"
    except OSError:
        pass
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
