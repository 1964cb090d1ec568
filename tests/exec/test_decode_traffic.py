"""What a decode step reads: counts against a plain recount, on every recorded run."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import TraceError
from core.exec.decode_traffic import CUTS, Cut, Heads, decode_steps, step_of, traffic
from core.trace import events as ev
from core.trace.trace import Trace, load_trace

TRACES = Path(__file__).parents[2] / "assets" / "traces"
FILES = sorted(TRACES.rglob("*.jsonl.gz"))
SMALL = CUTS["interpreter"]


def opened(name: str) -> Trace:
    return load_trace(TRACES / f"{name}.jsonl.gz")


def heads_of(trace: Trace) -> Heads:
    heads = Heads.of(trace.header.model)
    assert heads is not None
    return heads


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_program_reads_its_sequences_blocks_in_table_order(path: Path) -> None:
    trace = load_trace(path)
    heads = heads_of(trace)
    for number in decode_steps(trace)[::7]:
        step = step_of(trace, number)
        for splits in (1, 3):
            found = traffic(step, heads, SMALL, splits=splits)
            for place, sequence in enumerate(step.sequences):
                needed = -(-sequence.seq_len // step.block_size)
                mine = [p for p in found.programs if p.sequence == place]
                read = dict.fromkeys(block for p in mine for block in p.blocks)
                assert list(read) == list(sequence.table[:needed])
                assert sum(p.end - p.begin for p in mine) == sequence.seq_len
                assert found.bytes_of(place) == sequence.seq_len * 2 * 3 * 64 * heads.item_bytes


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_step_has_as_many_stored_tokens_as_its_events_say(path: Path) -> None:
    trace = load_trace(path)
    for number in decode_steps(trace)[::7]:
        step = step_of(trace, number)
        one = {
            e.seq_id: e.start + 1
            for e in trace.events
            if isinstance(e, ev.RequestScheduled) and e.step == number and e.tokens == 1
        }
        found = {s.seq_id: s.seq_len for s in step.sequences}
        assert found.items() <= one.items()
        assert all(step.filled[block] for s in step.sequences for block in s.table[:1])


def test_heads_that_share_a_load_read_a_third_of_what_they_would_alone() -> None:
    trace = opened("01_tour")
    found = traffic(step_of(trace, 37), heads_of(trace), SMALL)
    assert found.separate_bytes == 3 * found.shared_bytes
    assert found.padded_bytes == 3 * 87 * heads_of(trace).token_bytes * 3
    assert found.num_programs == 9 and found.splits == 1


def test_blocks_that_sequences_share_are_visited_by_each_of_them() -> None:
    trace = opened("08_static_and_paged")
    step = step_of(trace, 49)
    found = traffic(step, heads_of(trace), SMALL)
    tables = [set(s.table[: -(-s.seq_len // 16)]) for s in step.sequences]
    assert found.blocks_touched == len(set.union(*tables)) < found.block_reads
    assert found.block_reads == sum(map(len, tables))


def test_places_past_the_end_are_counted_as_idle_and_not_read() -> None:
    trace = opened("02_one_prompt")
    step = step_of(trace, 13)
    found = traffic(step, heads_of(trace), SMALL, tile=16)
    (sequence,) = step.sequences
    assert sequence.seq_len == 17
    assert found.idle_lanes == 32 - 17
    assert found.shared_bytes == 17 * heads_of(trace).token_bytes * 3


def test_long_contexts_of_few_sequences_are_cut_for_a_large_gpu() -> None:
    trace = opened("08_static_and_paged")
    step = step_of(trace, decode_steps(trace)[-1])
    assert traffic(step, heads_of(trace), CUTS["h100"]).splits == 1  # too short to cut
    assert traffic(step, heads_of(trace), Cut("sm90", 132), splits=4).splits == 4


def test_a_model_that_names_no_heads_has_none() -> None:
    assert Heads.of({"name": "x", "dtype": "float32"}) is None
    assert Heads.of({"heads": 4, "kv_heads": 0, "head_dim": 8, "layers": 1, "dtype": "x"}) is None


def test_a_step_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(TraceError) as fault:
        step_of(opened("02_one_prompt"), 999)
    assert "999" in fault.value.sentence("en")


def test_a_layer_with_a_window_reads_only_its_last_blocks() -> None:
    trace = opened("01_tour")
    step, heads = step_of(trace, 37), heads_of(trace)
    whole, found = (traffic(step, heads, SMALL, window=window) for window in (None, 20))
    for place, sequence in enumerate(step.sequences):
        seen = min(sequence.seq_len, 20)
        assert found.bytes_of(place) == seen * heads.token_bytes * heads.num_kv_heads
        blocks = [b for p in found.programs if p.sequence == place for b in p.blocks]
        first = (sequence.seq_len - seen) // step.block_size
        assert blocks == list(sequence.table[first : -(-sequence.seq_len // step.block_size)])
    assert found.shared_bytes < whole.shared_bytes
    assert found.padded_bytes == len(step.sequences) * 20 * heads.token_bytes * 3
    assert (whole.window, found.window) == (None, 20)


def test_layers_are_counted_by_their_windows_where_the_model_says_them() -> None:
    model = {"heads": 4, "kv_heads": 2, "head_dim": 16, "layers": 3, "dtype": "float32"}
    for windows, kinds in (
        ([None, 8, 8], {None: 1, 8: 2}),
        ([8, 8], {None: 3}),
        ([0, 8, 8], {None: 3}),
        ("888", {None: 3}),
        (None, {None: 3}),
    ):
        heads = Heads.of({**model, "windows": windows})
        assert heads is not None and heads.kinds == kinds


def test_an_fp8_cache_is_read_at_one_byte_a_number_by_the_queries_own_kernel() -> None:
    model = {"heads": 4, "kv_heads": 2, "head_dim": 16, "layers": 3, "dtype": "float32"}
    plain, small = Heads.of(model), Heads.of(model | {"kv_dtype": "float8_e4m3fn"})
    assert plain is not None and small is not None
    assert (plain.stored, small.stored) == ("float32", "float8_e4m3fn")
    assert plain.token_bytes == 4 * small.token_bytes == 4 * 2 * 16
    assert small.dtype == "float32"
    assert Heads.of(model | {"kv_dtype": ["float32"]}) is None
