"""Layers of Llama's shape computed with fewer, larger operators, on the CPU.

A decode step has few rows, so much of its time is the calling of small operators. A layer that
consists of a norm, attention with rotary embedding, a norm and a gated unit is computed here with
one product for q, k and v, one for gate and up, and half of the operators for the rest. A norm's
weights are multiplied into those of the product behind it.

Where numba is installed, the norms and the rotary embedding of few rows are compiled loops.

Whether a layer is of that shape is not taken from its name: the model runs once, and a layer is
fused only when the fused operators give that layer's own output, for many rows and for few. What
the layer hands to attention beside q, k and v (scaling, a window) is taken over from that run.
Every other layer, and every call without a paged cache, keeps the layer's own forward. The
weights' packed copies count towards `pack.MAX_BYTES`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from core.exec import pack
from core.exec.attention import ATTENTION_NAME, paged_attention_forward
from kernels import dispatch

__all__ = ["Fused", "fuse_layers"]

_TRIAL_NAME = "glassblock_fuse"
_TRIAL_TOKENS = 5
# Up to so many rows a compiled loop on one thread is faster than torch's operators on all of them.
_FEW_ROWS = 64
# What the fused layer may differ: a share of what the layer adds to its input, and of the rounding
# of the sum.
_BOUNDS = {torch.float32: (1e-4, 1e-6), torch.bfloat16: (2e-2, 8e-3)}
_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
_UNIT = {"gate_proj", "up_proj", "down_proj", "act_fn"}

# Attention of one layer: query, key and value, each [1, heads, tokens, dim], to [1, tokens, ...].
_Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Fused:
    """What `fuse_layers` did: bytes of the packed copies, and the linear layers they stand for."""

    num_bytes: int = 0
    linears: frozenset[nn.Module] = frozenset()


@dataclass(slots=True)
class _Seen:
    """One layer's call in the trial."""

    inputs: Tensor
    rotary: tuple[Tensor, Tensor]
    given: frozenset[str]
    output: Any


@dataclass(slots=True)
class _Trial:
    layers: dict[nn.Module, _Seen] = field(default_factory=dict)
    attention: dict[nn.Module, dict[str, Any]] = field(default_factory=dict)


_trial: ContextVar[_Trial | None] = ContextVar("trial", default=None)


def fuse_layers(model: Any) -> Fused:
    """Gives every layer of Llama's shape in a small CPU model a fused forward; changes the model.

    Returns:
        Nothing fused where it is not possible or would take too much memory.
    """
    layers = [module for module in model.modules() if _has_shape(module)]
    linears = [linear for layer in layers for linear in _linears(layer)]
    total = sum(linear.weight.nbytes for linear in linears)
    if not layers or total > pack.MAX_BYTES:
        return Fused()
    try:
        trial = _run_trial(model, layers)
        forwards = [_checked(layer, trial) for layer in layers]
    except pack.FAULTS:
        return Fused()
    done = [(layer, new) for layer, new in zip(layers, forwards, strict=True) if new is not None]
    for layer, forward in done:
        # On the instance: everything else about the layer stays what other code expects.
        layer.__dict__["forward"] = forward
    covered = [linear for layer, _ in done for linear in _linears(layer)]
    return Fused(sum(linear.weight.nbytes for linear in covered), frozenset(covered))


def _names(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


def _has_shape(module: Any) -> bool:
    """Whether the parts have the names of a Llama layer's; the trial looks at the rest."""
    if not isinstance(module, nn.Module) or _names(module) != _PARTS:
        return False
    attention, unit = module.get_submodule("self_attn"), module.get_submodule("mlp")
    if _names(attention) != _PROJECTIONS or _names(unit) != _UNIT:
        return False
    linears = _linears(module)
    biased = {linear.bias is None for linear in linears[:3]}
    return all(map(pack.can_pack, linears)) and len(biased) == 1


def _linears(layer: Any) -> list[Any]:
    attention, unit = layer.self_attn, layer.mlp
    return [
        attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
        unit.gate_proj, unit.up_proj, unit.down_proj,
    ]  # fmt: skip


class _Layer:
    """A layer's weights, packed, and its computation."""

    def __init__(self, layer: Any) -> None:
        attention, unit = layer.self_attn, layer.mlp
        self._dim = int(attention.head_dim)
        self._heads = attention.q_proj.out_features // self._dim
        self._kv_heads = attention.k_proj.out_features // self._dim
        before, between = layer.input_layernorm, layer.post_attention_layernorm
        self._norms = _Norm(before), _Norm(between)
        self._qkv = _joined(attention.q_proj, attention.k_proj, attention.v_proj, norm=before)
        self._out = _joined(attention.o_proj)
        self._gate_up = _joined(unit.gate_proj, unit.up_proj, norm=between)
        self._down = _joined(unit.down_proj)
        self._activation = unit.act_fn
        half = self._dim // 2
        weight = layer.mlp.down_proj.weight
        self._sign = torch.cat([-torch.ones(half), torch.ones(half)]).to(weight)
        self._compiled = dispatch.has_compiled(weight.dtype)

    def rotates(self, rotary: tuple[Tensor, Tensor]) -> bool:
        """Whether cosine and sine cover the whole of every head, one row a token."""
        return rotary[0].shape[0] == 1 and rotary[0].shape[-1] == self._dim

    def compute(
        self, hidden: Tensor, rotary: tuple[Tensor, Tensor], attend: _Attend, few: int = _FEW_ROWS
    ) -> Tensor:
        """The layer's output, `[1, tokens, hidden]`; up to `few` tokens by compiled loops."""
        compiled = self._compiled and hidden.shape[1] <= few
        joint = self._qkv(self._norms[0](hidden, compiled))
        out = attend(*self._split(joint, *rotary, compiled))
        hidden = self._out(out.reshape(1, hidden.shape[1], -1)).add_(hidden)
        gate, up = self._gate_up(self._norms[1](hidden, compiled)).chunk(2, dim=-1)
        return self._down(self._activation(gate).mul_(up)).add_(hidden)

    def _split(self, joint: Tensor, cos: Tensor, sin: Tensor, compiled: bool) -> list[Tensor]:
        """Turned queries, turned keys and values, `[1, heads, tokens, dim]` each."""
        both = self._heads + self._kv_heads
        heads = joint.view(joint.shape[1], -1, self._dim)
        if compiled:
            from kernels import numba_paged

            numba_paged.rotate_heads(heads, cos[0], sin[0], both)
            turned = heads
        else:
            turned = self._turn(heads[:, :both], cos[0], sin[0])
        parts = turned[:, : self._heads], turned[:, self._heads : both], heads[:, both:]
        return [part.transpose(0, 1)[None] for part in parts]

    def _turn(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary embedding: the halves of a head are the coordinates that turn."""
        swapped = heads.roll(self._dim // 2, dims=-1)
        signed = (sin * self._sign)[:, None]  # [tokens, 1, dim]
        return torch.addcmul(heads * cos[:, None], swapped, signed)


class _Norm:
    """Rows over their root mean square; the norm's weights are in the product that follows."""

    def __init__(self, norm: Any) -> None:
        width, epsilon = norm.weight.shape[0], float(norm.variance_epsilon)
        self._epsilon = epsilon
        self._scale = width**-0.5
        self._floor = torch.tensor((width * epsilon) ** 0.5)

    def __call__(self, hidden: Tensor, compiled: bool) -> Tensor:
        if compiled:
            from kernels import numba_paged

            return numba_paged.divided_by_rms(hidden[0], self._epsilon)[None]
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True, dtype=torch.float32)
        # Of the root of (sum of squares / width + epsilon), width is taken out.
        root = torch.hypot(length, self._floor).mul_(self._scale)
        return torch.div(hidden, root, out=torch.empty_like(hidden))


def _joined(*linears: Any, norm: Any = None) -> Callable[[Tensor], Tensor]:
    """One packed product that gives the outputs of several linear layers side by side."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    if norm is not None:
        weight = (weight.float() * norm.weight.detach().float()).to(weight.dtype)
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    return pack.packed_product(weight, torch.cat(biases) if biases else None)


def _checked(layer: Any, trial: _Trial) -> Callable[..., Any] | None:
    """A fused forward; None when it is not this layer's function."""
    seen = trial.layers.get(layer)
    if seen is None or not isinstance(seen.output, Tensor) or layer.self_attn not in (
        trial.attention
    ):  # fmt: skip
        return None
    passed = trial.attention[layer.self_attn]
    own = {name: value for name, value in passed.items() if name not in seen.given}
    if any(isinstance(value, Tensor) for value in own.values()):
        return None
    fused = _Layer(layer)
    if not fused.rotates(seen.rotary):
        return None
    plain = _plain_attention(own.get("scaling"))
    with torch.inference_mode():
        ways = [fused.compute(seen.inputs, seen.rotary, plain, few) for few in (0, _FEW_ROWS)]
    agrees = all(_agrees(found, seen) for found in ways)
    return _forward(layer, fused, own) if agrees else None


def _agrees(found: Tensor, seen: _Seen) -> bool:
    """Whether an output is the layer's own but for rounding."""
    wanted, start = seen.output.float(), seen.inputs.float()
    share, rounding = _BOUNDS[seen.inputs.dtype]
    bound = share * (wanted - start).norm() + rounding * wanted.norm()
    return bool((found.float() - wanted).norm() <= bound)


def _forward(layer: Any, fused: _Layer, own: dict[str, Any]) -> Callable[..., Any]:
    original, attention = layer.forward, layer.self_attn

    def forward(hidden_states: Tensor, *args: Any, **given: Any) -> Any:
        rotary, kv_tensors = given.get("position_embeddings"), given.get("kv_tensors")
        if args or kv_tensors is None or rotary is None or not fused.rotates(rotary):
            return original(hidden_states, *args, **given)
        inputs = given["batch_inputs"]

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return paged_attention_forward(
                attention, query, key, value, None,
                kv_tensors=kv_tensors, batch_inputs=inputs, **own,
            )[0]  # fmt: skip

        return fused.compute(hidden_states, rotary, attend)

    return forward


def _run_trial(model: Any, layers: list[Any]) -> _Trial:
    """What every layer got, answered and passed on to attention in one small forward."""
    trial = _Trial()

    def note(layer: nn.Module, args: tuple[Any, ...], given: dict[str, Any], output: Any) -> None:
        rotary = given.get("position_embeddings")
        if len(args) == 1 and rotary is not None:
            trial.layers[layer] = _Seen(args[0], rotary, frozenset(given), output)

    hooks = [layer.register_forward_hook(note, with_kwargs=True) for layer in layers]
    text = model.config.get_text_config(decoder=True)
    ids = torch.arange(1, 1 + _TRIAL_TOKENS) * 7 % text.vocab_size
    token = _trial.set(trial)
    try:
        with torch.inference_mode(), _attention(model):
            model(input_ids=ids[None], use_cache=False)
    finally:
        _trial.reset(token)
        for hook in hooks:
            hook.remove()
    return trial


@contextmanager
def _attention(model: Any) -> Iterator[None]:
    model.set_attn_implementation(_TRIAL_NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(ATTENTION_NAME)


def _plain_attention(scaling: float | None) -> _Attend:
    """Causal attention without a cache."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2)  # [1, tokens, heads, dim]

    return attend


def _trial_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **passed: Any,
) -> tuple[Tensor, None]:
    """Notes what the layer passes, and attends."""
    trial = _trial.get()
    if trial is not None:
        trial.attention[module] = passed
    return _plain_attention(passed.get("scaling"))(query, key, value).contiguous(), None


AttentionInterface.register(_TRIAL_NAME, _trial_forward)
