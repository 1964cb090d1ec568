"""Chooses tokens from logits: penalties, filters, random numbers, log-probabilities.

The filters do what transformers' logits processors do, for many rows with different settings at
once. A row's random number depends only on its seed, its sample index and the position of the
token, so that batching, chunking, preemption or a second run can't change what is chosen.

It does not know blocks or the model. Log-probabilities are those of the model's own logits,
before temperature and filters.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from core.request import SamplingParams, Sequence
from core.sched.output import Candidate, Sampled

__all__ = ["Row", "beam_candidates", "filter_logits", "rows_for", "sample", "uniforms"]

# Candidates that top-p looks at before it sorts a whole vocabulary.
_NUCLEUS = 1024
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class Row:
    """One token to choose.

    Attributes:
        source: row of the logits.
        seq: the sequence that it continues.
        seed: the request's seed, settled.
        sample_index: which of the request's samples it belongs to.
        position: index that the token will have in its sequence.
    """

    source: int
    seq: Sequence
    seed: int
    sample_index: int
    position: int

    @property
    def params(self) -> SamplingParams:
        """The request's settings."""
        return self.seq.request.params


def rows_for(source: int, seq: Sequence, engine_seed: int) -> list[Row]:
    """The rows of one sequence: n for the first token of a request with n samples, else one."""
    request = seq.request
    seed = request.params.seed
    if seed is None:
        # Samples that are requests of their own share their parent's seed and differ by index.
        name = f"{engine_seed}:{request.parent_id or request.request_id}"
        seed = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
    alone = len(request.sequences) == 1 and not request.finished
    first = request.params.n > 1 and alone and seq.num_output_tokens == 0
    indices = range(request.params.n) if first else (seq.sample_index,)
    return [Row(source, seq, seed, index, len(seq.token_ids)) for index in indices]


def sample(logits: Tensor, rows: SequenceOf[Row]) -> list[Sampled]:
    """One token for each row; greedy where temperature is 0.

    Args:
        logits: `[sequences, vocab]`, float32; not changed.
        rows: what to choose, several may share a row of logits.
    """
    if not rows:
        return []
    sources = [row.source for row in rows]
    identity = sources == list(range(logits.shape[0]))
    own = logits if identity else logits[torch.tensor(sources, device=logits.device)]
    scores = _penalized(own, rows)
    tokens = _argmax(scores)  # [rows]
    random = [index for index, row in enumerate(rows) if not row.params.is_greedy]
    if random:
        chosen = torch.tensor(random, device=logits.device)
        drawn = [rows[index] for index in random]
        filtered = filter_logits(scores[chosen], [row.params for row in drawn])
        tokens[chosen] = _draw(filtered, uniforms(drawn))
    return _with_logprobs(own, tokens, rows)


def beam_candidates(
    logits: Tensor, rows: SequenceOf[Row], count: int
) -> list[tuple[Candidate, ...]]:
    """The `count` likeliest continuations of each row, best first, ties to the smaller id.

    Args:
        logits: `[sequences, vocab]`, float32.
        rows: one for each sequence.
        count: continuations wanted; at most the vocabulary.
    """
    own = logits[torch.tensor([row.source for row in rows], device=logits.device)]
    # Beams are penalized on log-probabilities, as transformers does; samples on logits.
    scores = _penalized(torch.log_softmax(own, dim=-1), rows)
    values, ids = scores.topk(min(count, scores.shape[-1]), dim=-1)
    return [
        tuple(
            Candidate(token_id, logprob)
            for logprob, token_id in sorted(
                zip(row_values, row_ids, strict=True), key=lambda pair: (-pair[0], pair[1])
            )
        )
        for row_values, row_ids in zip(values.tolist(), ids.tolist(), strict=True)
    ]


def filter_logits(logits: Tensor, params: SequenceOf[SamplingParams]) -> Tensor:
    """Logits after temperature, top-k, top-p and min-p; what is filtered out is -inf.

    Args:
        logits: `[rows, vocab]`, float32; not changed.
        params: one for each row, with a temperature above 0.
    """
    scores = logits / _column([item.temperature for item in params], logits)
    scores = _top_k(scores, [item.top_k for item in params])
    scores = _top_p(scores, [item.top_p for item in params])
    return _min_p(scores, [item.min_p for item in params])


def uniforms(rows: SequenceOf[Row]) -> np.ndarray:
    """One number in (0, 1) for each row, from its seed, sample index and position alone."""
    state = np.array([row.seed for row in rows], dtype=np.uint64)
    with np.errstate(over="ignore"):  # wrapping around is what a hash does
        for word in (
            np.array([row.sample_index for row in rows], dtype=np.uint64),
            np.array([row.position for row in rows], dtype=np.uint64),
        ):
            state = _splitmix(state) ^ _splitmix(word + _GOLDEN)
        bits = _splitmix(state) >> np.uint64(11)  # 53 bits: what a float64 holds exactly
    result: np.ndarray = (bits.astype(np.float64) + 0.5) / float(1 << 53)
    return result


def _splitmix(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    values = values + _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


def _column(values: SequenceOf[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]  # [rows, 1]


def _penalized(scores: Tensor, rows: SequenceOf[Row]) -> Tensor:
    """Scores with the repetition penalty over prompt and output; a copy where one applies."""
    if all(row.params.repetition_penalty == 1.0 for row in rows):
        return scores
    scores = scores.clone()
    for index, row in enumerate(rows):
        penalty = row.params.repetition_penalty
        if penalty == 1.0:
            continue
        seen = torch.tensor(sorted(set(row.seq.token_ids)), device=scores.device)
        found = scores[index, seen]
        scores[index, seen] = torch.where(found < 0, found * penalty, found / penalty)
    return scores


def _top_k(scores: Tensor, limits: SequenceOf[int]) -> Tensor:
    vocab = scores.shape[-1]
    limits = [limit if 0 < limit < vocab else 0 for limit in limits]
    widest = max(limits)
    if not widest:
        return scores
    best = scores.topk(widest, dim=-1).values  # [rows, widest]
    last = torch.tensor([max(limit, 1) - 1 for limit in limits], device=scores.device)[:, None]
    bounds = best.gather(1, last)  # [rows, 1]
    unlimited = torch.tensor([not limit for limit in limits], device=scores.device)[:, None]
    return scores.masked_fill((scores < bounds) & ~unlimited, float("-inf"))


def _top_p(scores: Tensor, limits: SequenceOf[float]) -> Tensor:
    """Keeps a token while the tokens above it hold less than top_p."""
    limited = [index for index, limit in enumerate(limits) if limit < 1.0]
    if not limited:
        return scores
    rows = torch.tensor(limited, device=scores.device)
    chosen = scores[rows]
    bound = _column([limits[index] for index in limited], scores)
    logsumexp = chosen.logsumexp(dim=-1, keepdim=True)
    count = min(_NUCLEUS, scores.shape[-1])
    while True:
        best, ids = chosen.topk(count, dim=-1)  # [limited, count], best first
        mass = (best - logsumexp).exp()
        above = mass.cumsum(dim=-1) - mass  # what the tokens before hold
        if count == scores.shape[-1] or bool((above[:, -1:] >= bound).all()):
            break
        count = scores.shape[-1]
    kept = torch.where(above < bound, best, float("-inf"))
    kept[:, 0] = best[:, 0]
    filtered = torch.full_like(chosen, float("-inf")).scatter_(1, ids, kept)
    return scores.index_copy(0, rows, filtered)


def _min_p(scores: Tensor, limits: SequenceOf[float]) -> Tensor:
    if not any(limits):
        return scores
    probabilities = scores.softmax(dim=-1)
    bounds = probabilities.amax(dim=-1, keepdim=True) * _column(limits, scores)
    return scores.masked_fill(probabilities < bounds, float("-inf"))


def _argmax(scores: Tensor) -> Tensor:
    """The first of the best tokens of each row, `[rows]`."""
    if scores.device.type != "cpu":
        return scores.argmax(dim=-1)
    # NOTE: numpy's runs ten times as fast as torch's over a vocabulary on a CPU.
    return torch.from_numpy(scores.numpy().argmax(axis=-1))


def _draw(scores: Tensor, numbers: np.ndarray) -> Tensor:
    """The token at which the cumulative probability, in vocabulary order, passes each number."""
    # float64 sums: with 50,000 tokens a float32 running sum would be off by whole tokens.
    cumulative = scores.softmax(dim=-1).double().cumsum(dim=-1)  # [rows, vocab]
    total = cumulative[:, -1:]
    target = torch.from_numpy(numbers).to(scores.device)[:, None] * total  # [rows, 1]
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=scores.shape[-1] - 1)


def _with_logprobs(logits: Tensor, tokens: Tensor, rows: SequenceOf[Row]) -> list[Sampled]:
    # One fused pass; logsumexp would take four.
    every = logits.log_softmax(dim=-1)  # [rows, vocab]
    logprobs = every.gather(1, tokens[:, None])[:, 0].tolist()
    wanted = [row.params.logprobs or 0 for row in rows]
    tops: list[tuple[tuple[int, float], ...]] = [()] * len(rows)
    if any(wanted):
        values, ids = every.topk(min(max(wanted), logits.shape[-1]), dim=-1)
        tops = [
            tuple(zip(row_ids[:count], row_values[:count], strict=True))
            for row_ids, row_values, count in zip(
                ids.tolist(), values.tolist(), wanted, strict=True
            )
        ]
    return [
        Sampled(token_id, logprob, top)
        for token_id, logprob, top in zip(tokens.tolist(), logprobs, tops, strict=True)
    ]
