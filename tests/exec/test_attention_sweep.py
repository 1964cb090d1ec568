"""The block sizes' attention times: all sizes compute the same thing, and a sweep survives JSON."""

import pytest
import torch

from core.errors import ConfigError, TraceError
from core.exec.attention_sweep import AttentionSweep, Shape, measure, prepared

SMALL = Shape("tiny", 4, 2, 8)


def test_a_sweep_has_a_time_for_each_size_and_says_on_what() -> None:
    turns: list[int] = []
    sweep = measure(
        (1, 4, 16), num_seqs=2, context=20, repeats=3, shape=SMALL, on_turn=turns.append
    )
    assert [size for size, _ in sweep.seconds] == [1, 4, 16]
    assert all(seconds > 0 for _, seconds in sweep.seconds)
    assert turns == [1, 2, 3]
    assert sweep.processor and sweep.threads == torch.get_num_threads()
    assert AttentionSweep.from_json(sweep.to_json()) == sweep


@pytest.mark.parametrize("size", [1, 3, 16, 64])
def test_each_size_attends_to_the_whole_context(size: int) -> None:
    out = prepared(size, 2, 37, SMALL, torch.float32)()
    assert isinstance(out, torch.Tensor)
    assert out.shape == (2, SMALL.num_heads, SMALL.head_dim)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize(("sizes", "context"), [((), 8), ((0,), 8), ((4,), 0), ((4,), 1 << 20)])
def test_a_sweep_of_nothing_or_of_too_much_is_refused(sizes: tuple[int, ...], context: int) -> None:
    with pytest.raises(ConfigError):
        measure(sizes, context=context, shape=SMALL)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seconds": [[1]]}'])
def test_a_text_that_is_no_sweep_is_refused(text: str) -> None:
    with pytest.raises(TraceError):
        AttentionSweep.from_json(text)
