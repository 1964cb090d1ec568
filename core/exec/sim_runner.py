"""SimRunner: a runner without a model. Answers are as long as asked; times come from a cost model.

It owns the load's arithmetic and the modelled clock of steps. Tokens are all the same, because
nobody reads them; a request's length is its `max_tokens`. It does not know workloads or arrivals,
and it loads no torch.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from core.errors import RequestError
from core.exec.cost_model import CostModel, StepLoad
from core.request import SeqId
from core.sched.output import Sampled, ScheduledSequence, SchedulerOutput, StepResult

__all__ = ["NoText", "Observer", "SimRunner", "load_of"]

Observer = Callable[[SchedulerOutput, StepLoad, float], None]

_TOKEN = (Sampled(0, 0.0),)


class SimRunner:
    """Takes modelled time, computes nothing.

    Args:
        cost: says how long a step takes.
        max_model_len: the longest context; None is the model shape's own.
        block_size: tokens that a copied or swapped block counts for.
        observe: is called in each step at the moment of the forward, when its memory is held and
            nothing has been released yet, with the load and the modelled seconds.

    Attributes:
        seconds: modelled seconds of the last step.
    """

    def __init__(
        self,
        cost: CostModel,
        *,
        max_model_len: int | None = None,
        block_size: int = 16,
        observe: Observer | None = None,
    ) -> None:
        self.cost = cost
        self.seconds = 0.0
        self._max_model_len = max_model_len or cost.shape.max_len
        self._block_size = block_size
        self._observe = observe

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """None: only the length ends an answer."""
        return frozenset()

    @property
    def max_model_len(self) -> int:
        """The longest context."""
        return self._max_model_len

    @property
    def vocab_size(self) -> int:
        """Words of the model that is simulated."""
        return self.cost.shape.vocab

    def execute(self, output: SchedulerOutput) -> StepResult:
        """The same token for everybody, after modelled seconds.

        Raises:
            RequestError: a beam search, which needs real candidates.
        """
        load = load_of(output, self._block_size)
        self.seconds = self.cost.seconds(load)
        if self._observe is not None:
            self._observe(output, load, self.seconds)
        return StepResult(_samples(output.scheduled), {}, {"forward": self.seconds}, {})


def load_of(output: SchedulerOutput, block_size: int = 16) -> StepLoad:
    """What a step has to compute, read and move.

    Copies and swaps count as whole blocks.
    """
    tokens = context = pairs = sampled = 0
    for item in output.scheduled:
        count = item.num_tokens
        end = item.start + count
        tokens += count
        context += end
        sampled += item.samples
        # Causal: of `count` new tokens the first sees start + 1 tokens, the last one `end`.
        pairs += end if count == 1 else count * item.start + count * (count + 1) // 2
    return StepLoad(
        len(output.scheduled),
        tokens,
        context,
        pairs,
        sampled,
        len(output.copies) * block_size,
        (len(output.swap_out) + len(output.swap_in)) * block_size,
    )


def _samples(scheduled: SequenceOf[ScheduledSequence]) -> dict[SeqId, tuple[Sampled, ...]]:
    """One token for each sampled sequence; n of them for the first of n samples."""
    samples = {}
    for item in scheduled:
        if not item.samples:
            continue
        seq = item.seq
        params = seq.request.params
        if params.beam_width > 1:
            raise RequestError("beams_need_model")
        if params.n > 1 and not seq.num_output_tokens and len(seq.request.sequences) == 1:
            samples[seq.seq_id] = _TOKEN * params.n
        else:
            samples[seq.seq_id] = _TOKEN
    return samples


class NoText:
    """A codec for tokens that nobody reads, and the empty text of every one of them."""

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        """One token a character: only the length counts."""
        return [0] * len(text)

    def pieces(self, token_ids: SequenceOf[int]) -> tuple[str, ...]:
        """Empty texts."""
        return ("",) * len(token_ids)

    def stream(self) -> "NoText":
        """Itself: it has no state."""
        return self

    def push(self, token_id: int) -> str:
        """Nothing."""
        return ""

    def flush(self) -> str:
        """Nothing."""
        return ""

    def copy(self) -> "NoText":
        """Itself."""
        return self
