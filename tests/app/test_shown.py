"""Recorded runs and uploads: whole ones, damaged ones, rubbish, and bombs."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.shown import log_header, open_upload, recorded, recorded_names
from core.errors import GlassblockError
from core.request import SamplingParams
from core.trace.delta_log import decode
from core.trace.trace import Trace
from core.trace.verify import verify
from core.workload.scenario import scenario_names
from tests.builders import make_engine


def trace_bytes(tmp_path: Path, *, packed: bool = True) -> bytes:
    engine = make_engine()
    engine.add_request("hello", SamplingParams(max_tokens=12, ignore_eos=True))
    list(engine.run())
    path = tmp_path / ("t.jsonl.gz" if packed else "t.jsonl")
    engine.trace().save(path)
    return path.read_bytes()


def header_line(**config: Any) -> bytes:
    engine = make_engine()
    plain = engine.header.to_dict()
    plain["config"] |= config
    return json.dumps({"glassblock": plain}).encode() + b"\n"


def test_every_scenario_has_a_recorded_real_run() -> None:
    assert recorded_names() == scenario_names()
    for name in recorded_names():
        shown = recorded(name)
        assert shown.trace.warning == "" and verify(shown.trace).ok
        assert shown.trace.header.measured and shown.trace.header.model["name"]
        assert decode(shown.log)[0] == log_header(shown.trace.header)


@pytest.mark.parametrize("packed", [True, False])
def test_an_uploaded_trace_opens(tmp_path: Path, packed: bool) -> None:
    shown = open_upload("mine", trace_bytes(tmp_path, packed=packed))
    assert isinstance(shown.trace, Trace) and shown.trace.warning == ""
    assert len(decode(shown.log)[1]) == len(shown.trace.events)


def test_a_cut_upload_keeps_its_whole_steps_and_warns(tmp_path: Path) -> None:
    whole = trace_bytes(tmp_path, packed=False)
    shown = open_upload("cut.jsonl", whole[: len(whole) * 2 // 3])
    assert len(shown.trace.events) > 0 and "damaged at line" in shown.trace.warning


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "not_a_trace"),
        (b"\x00\xff" * 500, "not_a_trace"),
        (b"\x1f\x8b rubbish", "not_a_trace"),
        (b'{"glassblock": 3}\n', "not_a_trace"),
        (b"[" * 100_000, "not_a_trace"),
        (b'{"glassblock": {"schema": 99}}\n', "trace_version"),
        (header_line() + b'{"type": "Nonsense"}\n', "not_a_trace"),
        (header_line(num_blocks=1 << 23), "upload_blocks"),
        (header_line(num_blocks=1 << 12, block_size=1024, allocator="contiguous"), "upload_blocks"),
        (header_line(num_blocks="many"), "not_a_trace"),
        (gzip.compress(b"\0" * (100 << 20), 1), "upload_expands"),
        (b"x" * (17 << 20), "upload_large"),
    ],
    ids=["empty", "binary", "no gzip", "no header", "deep", "version", "event", "blocks", "slots",
         "header", "bomb", "large"],
)  # fmt: skip
def test_rubbish_is_refused_with_one_sentence_that_names_the_file(data: bytes, code: str) -> None:
    with pytest.raises(GlassblockError) as caught:
        open_upload("mine.jsonl", data)
    text = caught.value.sentence()
    assert caught.value.code == code or (
        code == "not_a_trace" and caught.value.code == "header_config"
    )
    assert "/tmp" not in text and "\n" not in text and len(text) < 500


def test_a_first_visitor_sees_a_telling_moment_and_a_live_run_its_end() -> None:
    tour = recorded("01_tour")
    seen = list(tour.trace.events)[tour.opening - 1]
    assert type(seen).__name__ == "BlockCopied"
    live = replace(tour, is_live=True)
    assert live.opening == len(tour.trace.events)
