"""Linear layers with their weights laid out for oneDNN, on the CPU.

torch's linear layers rearrange their weights again in every call, which takes longer than the
product itself when a step has few rows. A packed copy made once runs a decode step's products
1.6 to 2.3 times as fast, in float32 and bfloat16, and gives the same numbers but for rounding.

The operations are torch's own but not part of its public interface. Where one is missing, fails,
or gives other numbers for any shape of layer in the model, all layers stay as they are: slower
and right. The copy doubles the weights' memory, so it is made for small models only. A layer
keeps its own weight, for code that reads it.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["FAULTS", "MAX_BYTES", "can_pack", "pack_linears", "packed_product"]

# Weights of a model above this stay as they are: doubling them would cost more than it gives.
MAX_BYTES = 2 << 30
# What the packed product may differ from the plain one, as a share of the result's norm.
_BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
_TRIAL_ROWS = 3
# What an operation that is missing or made for other arguments raises.
FAULTS = (AttributeError, NotImplementedError, RuntimeError, TypeError)

_Forward = Callable[[Tensor], Tensor]


def pack_linears(model: nn.Module, skip: Collection[nn.Module] = ()) -> int:
    """Gives every linear layer of a small CPU model a packed copy; changes the model.

    Args:
        model: whose layers they are.
        skip: layers that need none.

    Returns:
        Bytes of the copies; 0 where packing is of no use or not possible.
    """
    layers: list[Any] = [item for item in model.modules() if can_pack(item) and item not in skip]
    total: int = sum(layer.weight.nbytes for layer in layers)
    if total > MAX_BYTES:
        return 0
    try:
        forwards = _checked_forwards(layers)
    except FAULTS:
        return 0
    if forwards is None:
        return 0
    for layer, forward in zip(layers, forwards, strict=True):
        # On the instance: everything else about the layer stays what other code expects.
        layer.__dict__["forward"] = forward
    return total


def can_pack(module: nn.Module) -> bool:
    """Whether it is a plain linear layer on the CPU, of a dtype that packing is known for."""
    if type(module) is not nn.Linear:
        return False
    return module.weight.device.type == "cpu" and module.weight.dtype in _BOUNDS


def packed_product(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """A linear layer's function with a packed copy of its weight `[out, in]`.

    Raises:
        One of `FAULTS`: this torch can't.
    """
    operations = _operations()
    product = operations._linear_pointwise.default
    # NOTE: no hint of the batch size; a layout chosen for one row is slow for sixteen.
    packed = operations._reorder_linear_weight(weight, None)
    out_features = weight.shape[0]  # kept, so that the weight itself need not be

    def forward(rows: Tensor) -> Tensor:
        if rows.numel() == 0:  # oneDNN knows no empty product
            return rows.new_empty(*rows.shape[:-1], out_features)
        result: Tensor = product(rows, packed, bias, "none", [], "")
        return result

    return forward


def _operations() -> Any:
    """The oneDNN operations of torch.

    Raises:
        AttributeError: this torch has none.
    """
    onednn: Any = torch.backends.mkldnn
    if not onednn.is_available():
        raise AttributeError("torch was built without oneDNN")
    return torch.ops.mkldnn


def _checked_forwards(layers: list[nn.Linear]) -> list[_Forward] | None:
    """A packed forward for each layer; None when one of a kind of layer gives other numbers."""
    forwards: list[_Forward] = []
    known: set[tuple[torch.Size, torch.dtype, bool]] = set()
    for layer in layers:
        bias = None if layer.bias is None else layer.bias.detach()
        forward = packed_product(layer.weight.detach(), bias)
        kind = (layer.weight.shape, layer.weight.dtype, layer.bias is None)
        if kind not in known and not _agrees(layer, forward):
            return None
        known.add(kind)
        forwards.append(forward)
    return forwards


def _agrees(layer: nn.Linear, forward: _Forward) -> bool:
    weight = layer.weight
    count = _TRIAL_ROWS * layer.in_features
    rows = torch.arange(count).cos().to(weight.dtype).view(_TRIAL_ROWS, -1)  # [rows, in]
    with torch.inference_mode():
        wanted = F.linear(rows, weight, layer.bias).float()
        error = (forward(rows).float() - wanted).norm()
        return bool(error <= _BOUNDS[weight.dtype] * wanted.norm().clamp(min=1e-6))
