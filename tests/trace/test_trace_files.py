"""Trace files: round trips, the schema, and every kind of damage."""

import errno
import functools
import gc
import gzip
import json
import os
import random
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from core.errors import TraceError
from core.request import SamplingParams
from core.text import Speaks
from core.trace import events as ev
from core.trace.metrics import breakdown, series
from core.trace.recorder import EventStore
from core.trace.trace import SCHEMA_VERSION, Trace, load_trace, make_schema
from tests.builders import make_engine

_SCHEMA = Path(__file__).parents[2] / "assets" / "trace.schema.json"


@functools.cache
def small_trace() -> Trace:
    engine = make_engine(semantics="paper", num_blocks=12, preemption="swap", prefix_caching=True)
    engine.add_request([2, 3, 4, 5, 6, 7], SamplingParams(max_tokens=8, n=2))
    engine.add_request([2, 3, 4, 5, 8], SamplingParams(max_tokens=12, beam_width=2))
    engine.add_request([2, 3, 4, 5, 9, 10], SamplingParams(max_tokens=8, n=3))
    for _ in engine.run():
        pass
    return engine.trace()


@functools.cache
def tiny_lines() -> tuple[bytes, ...]:
    engine = make_engine()
    engine.add_request([2, 3, 4, 5, 6], SamplingParams(max_tokens=3))
    for _ in engine.run():
        pass
    trace = engine.trace()
    rows = [{"glassblock": trace.header.to_dict()}, *map(ev.to_dict, trace.events)]
    return tuple(json.dumps(row).encode() + b"\n" for row in rows)


def load(tmp_path: Path, content: bytes, name: str = "t.jsonl") -> Trace | None:
    """The trace, or None when it was refused with a sentence; nothing else may happen."""
    path = tmp_path / name
    path.write_bytes(content)
    try:
        trace = load_trace(path)
    except TraceError as error:
        assert error.sentence()
        assert error.sentence("zh")
        return None
    trace.snapshot()
    return trace


def is_whole(trace: Trace) -> bool:
    """Whether the events end behind a step's end, or behind arrivals that came after it."""
    ended = max((e.step for e in trace.events if isinstance(e, ev.StepEnded)), default=0)
    return all(event.step <= ended for event in trace.events)


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_a_trace_survives_the_disk(name: str, tmp_path: Path) -> None:
    trace = small_trace()
    trace.save(tmp_path / name)
    loaded = load_trace(tmp_path / name)
    assert loaded.warning == ""
    assert loaded.header == trace.header
    assert list(loaded.events) == list(trace.events)
    loaded.save(tmp_path / f"again-{name}")
    assert (tmp_path / f"again-{name}").read_bytes() == (tmp_path / name).read_bytes()
    assert ((tmp_path / name).read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")


def test_the_schema_in_assets_is_the_codes() -> None:
    assert json.loads(_SCHEMA.read_text(encoding="utf-8")) == make_schema()


def test_every_line_of_a_run_fits_the_schema_and_altered_ones_do_not(tmp_path: Path) -> None:
    small_trace().save(tmp_path / "run.jsonl")
    check = jsonschema.Draft202012Validator(make_schema())
    rows = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    kinds = {row.get("type") for row in rows}
    assert len(kinds) > 14
    for row in rows:
        check.validate(row)
    assert not check.is_valid({**rows[1], "step": "one"})
    assert not check.is_valid({**rows[1], "more": 1})
    assert not check.is_valid({**rows[1], "type": "Nothing"})


def test_a_file_cut_anywhere_keeps_whole_steps_and_says_so(tmp_path: Path) -> None:
    content = b"".join(tiny_lines())
    whole = load(tmp_path, content)
    assert whole is not None
    ends = {0}
    for line in tiny_lines():
        ends.add(max(ends) + len(line))
    for cut in range(0, len(content), 3):
        trace = load(tmp_path, content[:cut])
        # Cuts at the very end of a line are the next test's.
        if trace is not None and cut not in ends and cut + 1 not in ends:
            assert trace.warning
            assert is_whole(trace)
            kept = list(trace.events)
            assert kept == list(whole.events)[: len(kept)]


def test_the_warning_of_a_damaged_file_reads_in_both_languages(tmp_path: Path) -> None:
    """Every kind of damage, down to the detail in brackets."""
    lines = tiny_lines()
    half = len(lines) // 2
    other = json.loads(lines[half]) | {"index": 999}
    faults = {
        "event_order": json.dumps(other).encode() + b"\n",
        "no_event": b"{rubbish\n",
        "no_object": b"[1]\n",
        "event_type": b'{"type": "Nonsense"}\n',
    }
    contents = {code: [*lines[:half], bad, *lines[half:]] for code, bad in faults.items()}
    told = {}
    for code, content in contents.items():
        (tmp_path / "bad.jsonl").write_bytes(b"".join(content))
        trace = load_trace(tmp_path / "bad.jsonl")
        assert trace.damage is not None and trace.warning == trace.damage.sentence("en")
        told[code] = trace.damage
    packed = gzip.compress(b"".join(lines))
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) * 9 // 10])
    cut = load_trace(tmp_path / "cut.jsonl.gz").damage
    assert cut is not None
    for fault in (*told.values(), cut):
        detail = fault.values["detail"]
        assert isinstance(detail, Speaks)
        assert detail.sentence("zh") != detail.sentence("en")
        assert detail.sentence("zh").rstrip("。") in fault.sentence("zh")
    assert "999" in told["event_order"].sentence("zh") and "gzip" in cut.sentence("zh")


def test_a_file_cut_between_two_lines_of_a_step_keeps_whole_steps(tmp_path: Path) -> None:
    lines = tiny_lines()
    for count in range(2, len(lines)):
        trace = load(tmp_path, b"".join(lines[:count]))
        assert trace is None or is_whole(trace), f"cut behind line {count}"


def test_a_compressed_file_cut_or_flipped_never_surprises(tmp_path: Path) -> None:
    content = gzip.compress(b"".join(tiny_lines()), mtime=0)
    rng = random.Random(0)
    for cut in range(0, len(content), 7):
        trace = load(tmp_path, content[:cut], "t.jsonl.gz")
        assert trace is None or trace.warning
    for _ in range(150):
        damaged = bytearray(content)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        load(tmp_path, bytes(damaged), "t.jsonl.gz")


def test_flipped_bytes_never_surprise(tmp_path: Path) -> None:
    content = b"".join(tiny_lines())
    rng = random.Random(1)
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(rng.randrange(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        load(tmp_path, bytes(damaged))


_ODD: list[Any] = [
    None, True, -1, 10**30, 1.5, float("nan"), float("inf"), "", "x", [], [-1], [10**12], {},
    {"code": 1}, {"code": "x", "n": [1]},
]  # fmt: skip


def test_odd_values_in_any_field_never_surprise(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in tiny_lines()]
    first: dict[str, int] = {}
    for number, row in enumerate(rows):
        first.setdefault(row.get("type", "header"), number)
    for number in first.values():
        fields = rows[number].get("glassblock", rows[number])
        for name in fields:
            for odd in _ODD:
                damaged = list(tiny_lines())
                plain = {**fields, name: odd}
                plain = {"glassblock": plain} if number == 0 else plain
                damaged[number] = json.dumps(plain).encode() + b"\n"
                load(tmp_path, b"".join(damaged))


@pytest.mark.parametrize("kind", ["float", "floats", "blocks"])
def test_numbers_too_large_for_a_float_never_surprise(kind: str, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in tiny_lines()]
    if kind == "float":
        next(row for row in lines if row.get("type") == "TokenSampled")["logprob"] = 10**400
    elif kind == "floats":
        next(row for row in lines if row.get("type") == "StepEnded")["timings"] = {"a": 10**400}
    else:
        lines[0]["glassblock"]["config"]["num_blocks"] = float("inf")
    load(tmp_path, b"".join(json.dumps(row).encode() + b"\n" for row in lines))


def test_an_unknown_kind_of_work_is_refused_before_the_numbers_need_it(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in tiny_lines()]
    next(row for row in lines if row.get("type") == "RequestScheduled")["kind"] = "other"
    trace = load(tmp_path, b"".join(json.dumps(row).encode() + b"\n" for row in lines))
    if trace is not None:
        series(trace)


@pytest.mark.parametrize(
    ("field", "kind", "value"),
    [
        ("logical_index", "BlockAllocated", -1),
        ("logical_index", "BlockShared", -1),
        ("tokens", "BlockCopied", -1),
        ("computed_tokens", "RequestAdmitted", -1),
        ("blocks", "BlocksSwappedIn", -1),
        ("blocks", "BlocksSwappedOut", -1),
        ("hosts", "BlocksSwappedOut", -1),
    ],
)
def test_negative_places_are_not_read_from_the_other_end(
    field: str, kind: str, value: int, tmp_path: Path
) -> None:
    small_trace().save(tmp_path / "run.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    number, row = [(n, r) for n, r in enumerate(rows) if r.get("type") == kind][-1]
    old = row[field]
    row[field] = [value, *old[1:]] if isinstance(old, list) else value
    content = b"".join(json.dumps(line).encode() + b"\n" for line in rows)
    trace = load(tmp_path, content)
    assert trace is None or len(trace.events) < number


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\n", b"\x00" * 100, b"\xff\xfe\xfa", b"%PDF-1.7\n", b"PK\x03\x04zip", b"{}\n",
        b"[]\n", b'{"glassblock":3}\n', b'{"glassblock":{"schema":1}}\n',
        b"\x1f\x8b", b"\x1f\x8bnothing",
        b"[" * 100_000, b'{"glassblock":' * 50_000, b"1" * 6000,
        b'"' + b"a" * 1000,
        b'{"glassblock":{"schema":1,"config":{},"model":{},"measured":true,"title":{}}}\n',
        b'{"glassblock":{"schema":1,"config":[1],"model":{},"measured":true,"title":{}}}\n',
    ],
)  # fmt: skip
def test_other_formats_are_refused_with_a_sentence(content: bytes, tmp_path: Path) -> None:
    assert load(tmp_path, content) is None


@pytest.mark.parametrize("version", [0, 2, "1", None, [], -1])
def test_an_unknown_version_is_named(version: object, tmp_path: Path) -> None:
    row = json.loads(tiny_lines()[0])
    row["glassblock"]["schema"] = version
    path = tmp_path / "t.jsonl"
    path.write_bytes(json.dumps(row).encode() + b"\n")
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    assert caught.value.code == "trace_version"
    assert str(SCHEMA_VERSION) in caught.value.sentence()


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(TraceError) as caught:
            load_trace(path)
        assert caught.value.code == "unreadable"


# ---------------------------------------------------------------- saving


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"old")

    def full(self: Trace, raw: Any, *, compress: bool) -> None:
        raw.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Trace, "_write", full)
    with pytest.raises(TraceError, match="No space left"):
        small_trace().save(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["run.jsonl"]


def test_an_interrupt_while_saving_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"old")

    def interrupted(self: Trace, raw: Any, *, compress: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trace, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small_trace().save(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["run.jsonl"]


def test_places_that_can_not_be_written_give_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for path in ("none/run.jsonl", "file/run.jsonl", "folder", "x" * 300):
        with pytest.raises(TraceError) as caught:
            small_trace().save(tmp_path / path)
        assert caught.value.code == "unwritable"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


# ------------------------------------------------------- the event store


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 50])
def test_a_store_that_spills_reads_like_a_list(limit: int) -> None:
    told = list(small_trace().events)[:60]
    store = EventStore(memory_limit=limit)
    for count, event in enumerate(told, start=1):
        store.append(event)
        assert len(store) == count
        assert len(store._recent) <= limit
    assert list(store) == told
    for index in range(len(told) + 2):
        assert list(store.since(index)) == told[index:]


def test_a_store_that_is_dropped_closes_its_file() -> None:
    store = EventStore(memory_limit=4)
    for event in list(small_trace().events)[:9]:
        store.append(event)
    file = store._file
    assert file is not None
    del store
    gc.collect()
    assert file.closed


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_events_appended_while_reading_are_not_seen(taken: int) -> None:
    told = list(small_trace().events)[:40]
    store = EventStore(memory_limit=8)
    for event in told[:12]:
        store.append(event)
    reader = store.since(0)
    read = [next(reader) for _ in range(taken + 1)]
    for event in told[12:]:
        store.append(event)
    read.extend(reader)
    assert read == told[:12]


@pytest.mark.parametrize("limit", [2, 9])
def test_a_reader_meets_a_store_that_another_thread_fills(limit: int) -> None:
    told = list(small_trace().events)
    store = EventStore(memory_limit=limit)
    writer = threading.Thread(target=lambda: [store.append(event) for event in told])
    writer.start()
    for _ in range(200):
        read = list(store)
        assert read == told[: len(read)]
    writer.join()
    assert list(store) == told


def test_every_step_can_be_revisited() -> None:
    trace = small_trace()
    for step in range(trace.num_steps + 1):
        assert trace.snapshot(step).step <= step
    with pytest.raises(TraceError):
        trace.snapshot(trace.num_steps + 1)
    with pytest.raises(TraceError):
        trace.snapshot(-1)


def test_a_header_of_a_few_bytes_does_not_fill_the_memory(tmp_path: Path) -> None:
    row = json.loads(tiny_lines()[0])
    row["glassblock"]["config"]["num_blocks"] = 1 << 18  # the limit is 64 times as much
    path = tmp_path / "t.jsonl"
    path.write_bytes(json.dumps(row).encode() + b"\n")
    tracemalloc.start()
    try:
        load_trace(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20  # 64 bytes a block


@pytest.mark.parametrize("num_blocks", [2, 1 << 22])
def test_contiguous_memory_of_any_size_can_be_read_again(num_blocks: int, tmp_path: Path) -> None:
    engine = make_engine(
        allocator="contiguous", reserve="exact", block_size=1, num_blocks=num_blocks
    )
    engine.add_request([2], SamplingParams(max_tokens=1))
    for _ in engine.run():
        pass
    engine.trace().save(tmp_path / "x.jsonl")
    again = load_trace(tmp_path / "x.jsonl")
    assert not again.warning and list(again.events) == list(engine.events)
    assert breakdown(again.snapshot()).free == num_blocks - 1


def test_a_spare_region_of_a_refused_request_does_not_surprise(tmp_path: Path) -> None:
    engine = make_engine(allocator="contiguous", num_blocks=10, max_model_len=20)
    engine.add_request([2] * 30)
    engine.add_request([2, 3], SamplingParams(max_tokens=2))
    for _ in engine.run():
        pass
    engine.trace().save(tmp_path / "x.jsonl")
    lines = (tmp_path / "x.jsonl").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if "RegionReserved" in line)
    lines[at] = json.dumps(json.loads(lines[at]) | {"request_id": "A", "seq_id": ""})
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    with pytest.raises(TraceError, match="RegionReserved"):
        load_trace(tmp_path / "x.jsonl")
