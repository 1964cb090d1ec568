"""Shapes of known models: what their weights and their KV cache weigh, and how they compute.

It owns one table, taken from the models' published configurations; parameters are computed from
it, not copied. It does not load models. Biases and norms (below 0.1 % of the weights) are left
out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from core.capacity.hardware import GIB, Hardware
from core.errors import ConfigError

__all__ = ["BYTES", "SHAPES", "ModelShape", "find_shape", "kv_memory"]

BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
# What vLLM sets aside beside the weights, in 106 of its start-up logs: NCCL, CUDA context and the
# like, and the activations of the largest step, which follow the vocabulary.
_NON_TORCH = int(0.25 * GIB)
_ACTIVATION_PER_WORD = 15.5 * 1024
_LEAST_ACTIVATION = 0.75 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """One decoder-only transformer with full attention.

    Attributes:
        gated: whether the MLP has three matrices (SwiGLU) or two.
        positions: learned positions, 0 for rotary ones.
        tied: whether input and output embeddings are one matrix.
        max_len: the longest context that the model was made for.
    """

    name: str
    title: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    max_len: int
    gated: bool = True
    tied: bool = False
    positions: int = 0

    @property
    def layer_params(self) -> int:
        """Weights of all layers: what every token is multiplied with."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + (3 if self.gated else 2) * self.hidden * self.mlp)

    @property
    def head_params(self) -> int:
        """Weights of the output embedding: what every sampled token is multiplied with."""
        return self.vocab * self.hidden

    @property
    def params(self) -> int:
        """All weights."""
        embeddings = self.head_params * (1 if self.tied else 2) + self.positions * self.hidden
        return self.layer_params + embeddings

    def weight_bytes(self, dtype: str = "float16") -> int:
        """Bytes of all weights."""
        return self.params * BYTES[dtype]

    def slot_bytes(self, dtype: str = "float16") -> int:
        """Bytes of one token's K and V over all layers.

        >>> find_shape("opt-13b").slot_bytes()
        819200
        """
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES[dtype]


def kv_memory(
    hardware: Hardware,
    shape: ModelShape,
    *,
    dtype: str = "float16",
    utilisation: float = 0.9,
    gpus: int = 1,
) -> int:
    """Bytes that remain for the KV cache, by vLLM's account.

    capacity x utilisation - weights - non-torch memory - activations of the largest step.

    Raises:
        ConfigError: nothing remains.
    """
    activation = max(_LEAST_ACTIVATION, _ACTIVATION_PER_WORD * shape.vocab)
    beside = int(activation) + _NON_TORCH
    room = int(hardware.capacity * utilisation - beside) * gpus
    remains = room - shape.weight_bytes(dtype)
    if remains <= 0:
        raise ConfigError(
            "model_too_big",
            name=shape.name,
            need=round(shape.weight_bytes(dtype) / GIB, 1),
            room=round(room / GIB, 1),
            hardware=hardware.name,
            gpus=gpus,
        )
    return remains


def _opt(size: str, layers: int, hidden: int, heads: int) -> ModelShape:
    return ModelShape(
        name=f"opt-{size.lower()}",
        title=f"OPT-{size}",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        mlp=4 * hidden,
        vocab=50272,
        max_len=2048,
        gated=False,
        tied=True,
        positions=2050,
    )


def _llama(
    title: str,
    layers: int,
    hidden: int,
    heads: tuple[int, int],
    mlp: int,
    vocab: int,
    max_len: int,
    *,
    tied: bool = False,
    head_dim: int = 0,
) -> ModelShape:
    """Rotary positions, a gated MLP; `heads` of queries, and of keys and values."""
    return ModelShape(
        name=title.lower().replace(" ", "-"),
        title=title,
        layers=layers,
        hidden=hidden,
        heads=heads[0],
        kv_heads=heads[1],
        head_dim=head_dim or hidden // heads[0],
        mlp=mlp,
        vocab=vocab,
        max_len=max_len,
        tied=tied,
    )


_ROWS = (
    _opt("125M", 12, 768, 12),
    _opt("1.3B", 24, 2048, 32),
    _opt("6.7B", 32, 4096, 32),
    _opt("13B", 40, 5120, 40),
    _opt("30B", 48, 7168, 56),
    _opt("66B", 64, 9216, 72),
    _opt("175B", 96, 12288, 96),
    _llama("Llama-2-7B", 32, 4096, (32, 32), 11008, 32000, 4096),
    _llama("Llama-2-13B", 40, 5120, (40, 40), 13824, 32000, 4096),
    _llama("Llama-2-70B", 80, 8192, (64, 8), 28672, 32000, 4096),
    _llama("Llama-3-8B", 32, 4096, (32, 8), 14336, 128256, 8192),
    _llama("Llama-3.1-8B", 32, 4096, (32, 8), 14336, 128256, 131072),
    _llama("Llama-3.1-70B", 80, 8192, (64, 8), 28672, 128256, 131072),
    _llama("Mistral-7B", 32, 4096, (32, 8), 14336, 32000, 32768),
    _llama("Qwen2.5-0.5B", 24, 896, (14, 2), 4864, 151936, 32768, tied=True),
    _llama("Qwen2.5-7B", 28, 3584, (28, 4), 18944, 152064, 32768),
    _llama("Qwen3-8B", 36, 4096, (32, 8), 12288, 151936, 40960, head_dim=128),
    _llama("SmolLM2-135M", 30, 576, (9, 3), 1536, 49152, 8192, tied=True),
    _llama("SmolLM2-1.7B", 24, 2048, (32, 32), 8192, 49152, 8192, tied=True),
)
SHAPES: Mapping[str, ModelShape] = {shape.name: shape for shape in _ROWS}


def find_shape(name: str) -> ModelShape:
    """The model shape of that name, in any case.

    Raises:
        ConfigError: there is none; the message lists them.
    """
    found = SHAPES.get(name.lower())
    if found is None:
        raise ConfigError("unknown_shape", name=name, known=", ".join(SHAPES))
    return found
