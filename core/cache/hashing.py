"""Hashes that name a full block together with everything before it.

hash = H((parent hash, tuple of token ids, extra keys or None)) with H(x) = sha256 of x pickled
with protocol 5; the first parent is H("vllm-none-hash"). This is what vLLM 0.33.0 computes, byte
for byte, so that its KV events and ours name the same blocks. A cache salt is an extra key
("cache_salt", salt) of block 0 only: the chain carries it on to every later block.
"""

import hashlib
import pickle
from collections.abc import Sequence as SequenceOf

from core.request import Sequence

__all__ = ["NONE_HASH", "extend_hashes", "hash_block"]

_dumps = pickle.dumps
_sha256 = hashlib.sha256
NONE_HASH = _sha256(_dumps("vllm-none-hash", protocol=5)).digest()


def hash_block(
    parent: bytes | None, token_ids: SequenceOf[int], extra_keys: tuple[object, ...] | None = None
) -> bytes:
    """The hash of one full block.

    >>> first = hash_block(None, (1, 2, 3, 4))
    >>> first.hex()[:12], hash_block(first, (5, 6, 7, 8)).hex()[:12]
    ('52a7f141c609', 'bee96bce54f5')
    >>> hash_block(None, (1, 2, 3, 4), (("cache_salt", "t1"),)).hex()[:12]
    '9e51baaf1328'
    """
    key = (parent or NONE_HASH, tuple(token_ids), extra_keys)
    return _sha256(_dumps(key, protocol=5)).digest()


def extend_hashes(seq: Sequence, block_size: int) -> list[bytes]:
    """Brings `seq.block_hashes` up to its full blocks and returns it."""
    hashes = seq.block_hashes
    token_ids = seq.token_ids
    for index in range(len(hashes), len(token_ids) // block_size):
        salt = seq.request.cache_salt if index == 0 else None
        start = index * block_size
        hashes.append(
            hash_block(
                hashes[-1] if hashes else None,
                token_ids[start : start + block_size],
                (("cache_salt", salt),) if salt else None,
            )
        )
    return hashes
