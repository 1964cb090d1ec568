"""Makes an engine for a loaded model: the one place where settings, model and tensors meet."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from core.config import EngineConfig
from core.engine import Engine
from core.errors import ConfigError
from core.exec import gpu_memory
from core.exec.cuda_graphs import CudaGraphs
from core.exec.model import LoadedModel
from core.exec.runner import ModelRunner, OnLogits, block_bytes
from core.machine import processor_name
from kernels.dispatch import Backend, choose_backend

__all__ = ["build_engine", "describe", "num_threads", "sized_for", "use_threads"]


def build_engine(
    loaded: LoadedModel,
    config: EngineConfig,
    *,
    backend: Backend = "auto",
    record: bool = True,
    title: Mapping[str, str] | None = None,
    first_step: int = 0,
    on_logits: OnLogits | None = None,
    cuda_graphs: CudaGraphs = "auto",
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
        cuda_graphs: see `ModelRunner`.

    Raises:
        ConfigError: the memory holds fewer than two blocks, `gpu_memory_utilization` is given
            without a GPU, or the backend can't run there.
        ModelError: `cuda_graphs` is True where steps can't be recorded.
    """
    shape = loaded.info.kv_shape(config.kv_cache_dtype)
    try:
        real_backend = choose_backend(backend, loaded.info.device, shape.dtype)
    except ValueError as error:
        raise ConfigError("backend", detail=error) from error
    sized = sized_for(loaded, config, backend)
    runner = ModelRunner(
        loaded, sized, backend=backend, on_logits=on_logits, cuda_graphs=cuda_graphs
    )
    return Engine(
        sized,
        runner,
        loaded.codec,
        model=describe(loaded)
        | {
            "kv_dtype": str(shape.dtype).removeprefix("torch."),
            "block_bytes": shape.block_bytes(config.block_size),
            "backend": real_backend,
        },
        record=record,
        title=title,
        first_step=first_step,
    )


def sized_for(loaded: LoadedModel, config: EngineConfig, backend: Backend) -> EngineConfig:
    """The configuration with the number of blocks that its memory holds for this model.

    Raises:
        ConfigError: fewer than two, or `gpu_memory_utilization` is given without a GPU.
    """
    if config.gpu_memory_utilization is not None:
        config = _sized_by_trial(loaded, config, backend)
    return config.sized(block_bytes(loaded.info, config))


def _sized_by_trial(loaded: LoadedModel, config: EngineConfig, backend: Backend) -> EngineConfig:
    """The configuration with the pool that the GPU has room for, after a trial step."""
    utilization = config.gpu_memory_utilization
    device = torch.device(loaded.info.device)
    if utilization is None or device.type != "cuda":
        raise ConfigError("gpu_memory_cpu", device=loaded.info.device)
    settings, step = gpu_memory.largest_step(config, loaded.info.max_model_len)
    runner = ModelRunner(loaded, settings, backend=backend, cuda_graphs=False)
    torch.cuda.reset_peak_memory_stats(device)
    runner.execute(step)
    memory = gpu_memory.read(device)
    peak = memory.peak - runner.kv.num_bytes
    left = gpu_memory.kv_budget(memory, utilization, peak)
    del runner
    torch.cuda.empty_cache()
    need = 2 * block_bytes(loaded.info, config)
    if left < need:
        raise ConfigError(
            "gpu_memory_small", utilization=utilization, left=max(0, left), peak=peak,
            other=memory.non_torch, need=need,
        )  # fmt: skip
    return replace(config, gpu_memory_utilization=None, kv_memory=left)


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
        **({"windows": list(info.windows)} if any(info.windows) else {}),
    }


def num_threads() -> int:
    """Threads of a forward that this thread runs."""
    return torch.get_num_threads()


def use_threads(count: int) -> None:
    """Sets the threads of the forwards that this thread runs: torch keeps the count by thread."""
    torch.set_num_threads(count)
