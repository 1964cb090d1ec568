"""Every fast path against the reference, and the reference against dense attention."""

import random

import pytest
import torch
import torch.nn.functional as F

from kernels import dispatch, reference, torch_paged
from tests.kernels.steps import STEPS, Step

FAST: tuple[dispatch.Backend, ...] = "torch", "numba"


def assert_equal_attention(step: Step, window: int | None = None, softcap: float | None = None):
    wanted = step.attend("reference", window, softcap)
    assert not wanted.isnan().any()
    bound = 1e-5 if step.query.dtype == torch.float32 else 2e-2
    for backend in FAST:
        found = step.attend(backend, window, softcap)
        torch.testing.assert_close(found, wanted, atol=bound, rtol=bound)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("block_size", [1, 2, 3, 8, 16, 32])
def test_fast_attention_equals_the_reference_for_every_block_size(
    name: str, block_size: int
) -> None:
    q_lens, seq_lens = STEPS[name]
    assert_equal_attention(Step(q_lens, seq_lens, block_size=block_size))


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("num_kv_heads", "group", "head_dim"), [(1, 1, 16), (1, 8, 20), (3, 3, 16), (4, 1, 24)]
)
def test_fast_attention_equals_the_reference_for_every_head_ratio(
    name: str, dtype: torch.dtype, num_kv_heads: int, group: int, head_dim: int
) -> None:
    step = Step(
        *STEPS[name],
        block_size=3,
        num_kv_heads=num_kv_heads,
        group=group,
        head_dim=head_dim,
        dtype=dtype,
    )
    assert_equal_attention(step)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("window", [None, 1, 2, 7, 64])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_fast_attention_honours_window_and_softcap(
    name: str, window: int | None, softcap: float | None
) -> None:
    assert_equal_attention(Step(*STEPS[name], block_size=4), window, softcap)


def test_random_ragged_steps_equal_the_reference() -> None:
    rng = random.Random(5)
    for seed in range(25):
        seq_lens = [rng.randint(1, 70) for _ in range(rng.randint(1, 9))]
        q_lens = [rng.choice([1, 1, rng.randint(1, length)]) for length in seq_lens]
        block_size = rng.choice([1, 2, 3, 4, 5, 16])
        assert_equal_attention(Step(q_lens, seq_lens, block_size=block_size, seed=seed))


def test_the_reference_equals_dense_attention() -> None:
    step = Step([9], [9], block_size=4)
    keys = step.keys[step.tables[0]].flatten(0, 1)[:9].repeat_interleave(2, dim=1)
    values = step.values[step.tables[0]].flatten(0, 1)[:9].repeat_interleave(2, dim=1)
    wanted = F.scaled_dot_product_attention(
        step.query.transpose(0, 1),
        keys.transpose(0, 1),
        values.transpose(0, 1),
        is_causal=True,
        scale=0.3,
    ).transpose(0, 1)
    torch.testing.assert_close(step.attend("reference"), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", ["reference", "torch", "numba"])
def test_written_keys_and_values_are_in_their_slots(backend: dispatch.Backend) -> None:
    step = Step([1, 5], [6, 5], block_size=3)
    key, value = torch.randn(2, 6, 2, 8)
    # As the model hands them over: a view with the heads in front.
    key = key.transpose(0, 1).contiguous().transpose(0, 1)
    before = step.keys.clone()
    dispatch.write_kv(key, value, step.keys, step.values, step.plan(backend))
    slots = step.slots.tolist()
    for token, slot in enumerate(slots):
        assert torch.equal(step.keys[divmod(slot, 3)], key[token])
        assert torch.equal(step.values[divmod(slot, 3)], value[token])
    others = [slot for slot in range(step.num_blocks * 3) if slot not in slots]
    for slot in others:
        place = divmod(slot, 3)
        assert torch.equal(step.keys[place].nan_to_num(), before[place].nan_to_num())


@pytest.mark.parametrize(
    "pairs", [[(0, 3)], [(0, 3), (1, 4), (0, 5)], [(0, 3), (3, 4)], [(0, 3), (1, 3)], []]
)
def test_copies_happen_as_if_one_after_the_other(pairs: list[tuple[int, int]]) -> None:
    storage = torch.randn(2, 6, 2, 1, 4)
    wanted = storage.clone()
    reference.copy_blocks(wanted, pairs)
    dispatch.copy_blocks(storage, pairs)
    assert torch.equal(storage, wanted)


def test_sequences_of_unlike_length_are_not_padded_to_each_other() -> None:
    step = Step(*STEPS["long and short decodes"], block_size=16)
    groups = step.plan("torch").groups
    assert sorted(group.shape for group in groups) == [(2, 1, 900), (4, 1, 7)]


def test_one_group_of_decodes_needs_no_reordering() -> None:
    (group,) = Step([1, 1, 1], [4, 9, 7], block_size=4).plan("torch").groups
    assert group.rows is None
    assert group.kept is None
    assert group.out_rows is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_lens": [1, 9]}, "sequence 1: 9 new tokens of 4"),
        ({"q_lens": [1, 1]}, "2 new tokens need 3 slots"),
        ({"q_lens": [3]}, "must be equally many"),
        ({"seq_lens": [40, 4]}, "40 in a block table of 8 slots"),
        ({"num_blocks": 1}, "outside 0 .. "),
        ({"backend": "cuda"}, "backend 'cuda' is not one of"),
        ({"slot_mapping": torch.tensor([0.0, 1.0, 2.0])}, "int32 or int64"),
        ({"block_tables": torch.tensor([0, 1])}, "block_tables must be 2-dimensional"),
        ({"slot_mapping": torch.tensor([-1, 0, 1])}, "slot_mapping holds -1"),
    ],
)
def test_a_wrong_step_is_refused_with_its_reason(change: dict, message: str) -> None:
    step = {
        "slot_mapping": torch.tensor([4, 8, 9]),
        "block_tables": torch.tensor([[0, 1], [2, 0]]),
        "seq_lens": [5, 4],
        "q_lens": [1, 2],
        "num_blocks": 4,
        "block_size": 4,
    } | change
    if change.get("q_lens") == [1, 9]:
        step["slot_mapping"] = torch.arange(10)
    with pytest.raises(ValueError, match=message):
        dispatch.prepare(**step)


def test_tensors_that_do_not_fit_the_plan_are_refused() -> None:
    step = Step([1, 2], [5, 2], block_size=4)
    plan = step.plan("torch")
    with pytest.raises(ValueError, match="query has shape"):
        dispatch.paged_attention(step.query[:2], step.keys, step.values, plan, 1.0)
    with pytest.raises(ValueError, match="can't share 2 KV heads"):
        dispatch.paged_attention(step.query[:, :3], step.keys, step.values, plan, 1.0)
    with pytest.raises(ValueError, match="query is "):
        dispatch.paged_attention(step.query.half(), step.keys, step.values, plan, 1.0)
    with pytest.raises(ValueError, match="sliding_window 0"):
        dispatch.paged_attention(step.query, step.keys, step.values, plan, 1.0, 0)
    with pytest.raises(ValueError, match="the plan was made for"):
        dispatch.paged_attention(step.query, step.keys[1:], step.values[1:], plan, 1.0)
    with pytest.raises(ValueError, match="are not two equal"):
        dispatch.paged_attention(step.query, step.keys, step.values[1:], plan, 1.0)
    with pytest.raises(ValueError, match="key has shape"):
        dispatch.write_kv(step.query, step.query, step.keys, step.values, plan)
    with pytest.raises(ValueError, match="key is "):
        half = torch.zeros(3, 2, 8, dtype=torch.float16)
        dispatch.write_kv(half, half, step.keys, step.values, plan)
    with pytest.raises(ValueError, match="block 9 is outside"):
        dispatch.copy_blocks(step.keys[None], [(0, 9)])


def test_masks_are_made_once_a_step() -> None:
    step = Step([1, 1], [9, 5], block_size=4)
    plan = step.plan("torch")
    for _ in range(3):
        torch_paged.paged_attention(step.query, step.keys, step.values, plan.groups, 0.3, 4)
    assert len(plan.groups[0].masks) == 1
