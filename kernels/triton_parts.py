"""The pieces that the Triton attention kernels share: finding slots, loading, online softmax.

Attention over a long context is computed tile by tile, so that no row of scores is ever stored.
A row's softmax needs the largest score of the whole row, which is known only at the end; *online
softmax* keeps three running values a row instead: the largest score so far (`best`), the sum of
exp(score - best) (`total`) and the output weighted in the same way (`output`). When a tile holds
a larger score, the two sums are multiplied by exp(old best - new best), as if the new one had
been known from the start. At the end output / total is the attention.

Scores are kept in base 2 (multiplied by log2 e), because the hardware computes 2^x. fp8 caches
come as bytes; a scale belongs to each KV head and is applied by the caller.

The kernels' words: a *program* is one instance of a kernel, a *tile* the tokens of one turn of its
loop. Sizes in capitals are compile-time constants.
"""

import triton
import triton.language as tl

__all__ = ["LOG2E", "finish", "load_tile", "masked_scores", "online_softmax", "token_slots"]

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def token_slots(
    table, positions, visible, num_blocks, BLOCK_SIZE: tl.constexpr, CHECKED: tl.constexpr
):  # fmt: skip
    """Where a sequence's tokens are: one look into its block table each, then the block's slot.

    Slots are 64-bit: slots x heads x head_dim passes 2^31 in a large pool. With CHECKED a block
    outside the pool makes its tokens invisible, so that foreign memory is never read.
    """
    block = tl.load(table + positions // BLOCK_SIZE, mask=visible, other=0).to(tl.int64)
    if CHECKED:
        visible = visible & (block >= 0) & (block < num_blocks)
    return block * BLOCK_SIZE + positions % BLOCK_SIZE, visible


@triton.jit
def load_tile(
    cache, slots, visible, dims, slot_stride, query,
    HEAD_DIM: tl.constexpr, FP8: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """A head's K or V of the slots, `[tile, dims]`, in the query's dtype; invisible ones are 0."""
    places = cache + slots[:, None] * slot_stride + dims[None, :]
    tile = tl.load(places, mask=visible[:, None] & (dims < HEAD_DIM)[None, :], other=0)
    if FP8:
        tile = _from_e4m3(tile, NATIVE)
    return tile.to(query.dtype)


@triton.jit
def masked_scores(query, keys, visible, scale, softcap, SOFTCAP: tl.constexpr):
    """Scores of a tile in base 2, `[rows, tile]`; -inf where a row doesn't see the token."""
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    if SOFTCAP:  # softcap * tanh(score / softcap); tanh x = 1 - 2 / (e^2x + 1)
        power = tl.exp2(scores * LOG2E * 2.0 / softcap)
        scores = softcap * (1.0 - 2.0 / (power + 1.0))
    return tl.where(visible, scores * LOG2E, float("-inf"))


@triton.jit
def online_softmax(scores, values, best, total, output):
    """One tile's part in the running softmax: the new (best, total, output)."""
    new_best = tl.maximum(best, tl.max(scores, 1))
    # A row that has seen no token yet holds -inf, and -inf - -inf is not a number.
    pivot = tl.where(new_best == float("-inf"), 0.0, new_best)
    weights = tl.exp2(scores - pivot[:, None])  # [rows, tile]
    kept = tl.exp2(best - pivot)
    total = total * kept + tl.sum(weights, 1)
    output = output * kept[:, None]
    output += tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return new_best, total, output


@triton.jit
def finish(total, output):
    """The attention of each row; 0 for a row that saw nothing."""
    return output / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def _from_e4m3(code, NATIVE: tl.constexpr):
    """float8 e4m3 bytes as float32; by the hardware, or by hand where it has no such type.

    By hand: sign, exponent and fraction moved to their places in a float16 give the value
    / 2^8 (the exponents' biases are 7 and 15), subnormal numbers too.
    """
    if NATIVE:
        return code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    wide = code.to(tl.uint16)
    bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    value = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((wide & 0x7F) == 0x7F, float("nan"), value)
