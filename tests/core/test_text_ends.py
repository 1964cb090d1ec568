"""A story of one fault: a limit on tokens that falls in the middle of a character."""

import codecs
from collections.abc import Sequence

from core.engine import Engine
from core.request import SamplingParams
from core.sched.output import Sampled, SchedulerOutput, StepResult
from tests.builders import FakeCodec, FakeRunner, make_config

_TEXT = "海🌊".encode()  # seven bytes, one a token


class _Bytes:
    """Token ids are bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(bytes([token_id]))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)

    def copy(self) -> "_Bytes":
        other = _Bytes()
        other._decoder.setstate(self._decoder.getstate())
        return other


class _ByteCodec(FakeCodec):
    def stream(self) -> _Bytes:  # type: ignore[override]
        return _Bytes()

    def pieces(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        return ("x",) * len(token_ids)


class _Dictation(FakeRunner):
    def execute(self, output: SchedulerOutput) -> StepResult:
        return StepResult(
            {
                i.seq.seq_id: (Sampled(_TEXT[i.seq.num_output_tokens], 0.0),)
                for i in output.scheduled
            }
        )


def _answer(max_tokens: int) -> str:
    runner = _Dictation(eos_token_ids=frozenset(), vocab_size=256)
    engine = Engine(make_config(), runner, _ByteCodec())
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=max_tokens))
    for _ in engine.run():
        pass
    return engine.outputs()[0].outputs[0].text


def test_an_answer_never_ends_in_half_a_character() -> None:
    assert [_answer(count) for count in range(1, 8)] == ["", "", "海", "海", "海", "海", "海🌊"]
