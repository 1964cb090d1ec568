"""Loaders: what each format says, what is refused and where, what skipping leaves out."""

import gzip
import json
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import ConfigError, WorkloadError
from core.text import catalogue
from core.workload import reading
from core.workload.loading import FORMATS, load_workload
from core.workload.requests import Workload, WorkloadRequest

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
    "2023-11-16 18:16:00.0000000,879,55"
)
MOONCAKE = "\n".join(
    json.dumps({"timestamp": ms, "input_length": n, "output_length": 5, "hash_ids": ids})
    for ms, n, ids in ((500, 600, [0, 1]), (500, 512, [0]), (3500, 1025, [0, 1, 7]))
)
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45,ChatGPT,1087,0,1087,Conversation log\n"
    "45.5,GPT-4,417,276,693,API log\n"
)
SHARE = json.dumps(
    [
        {
            "id": "a",
            "conversations": [
                {"from": "human", "value": "one two three"},
                {"from": "gpt", "value": "four five"},
                {"from": "human", "value": "six"},
            ],
        },
        {"id": "b", "conversations": [{"from": "human", "value": "alone"}]},
        {
            "id": "c",
            "conversations": [{"from": "human", "value": ""}, {"from": "gpt", "value": "x"}],
        },
        {
            "id": "d",
            "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}],
        },
    ],
    indent=1,
)
LENGTHS = "Output, Prompt ,Arrival\n5,10,0.5\n\n6,11,2\n"
GOOD = {
    "azure": AZURE,
    "mooncake": MOONCAKE,
    "burstgpt": BURST,
    "sharegpt": SHARE,
    "lengths": LENGTHS,
}


def write(folder: Path, content: str | bytes, name: str = "mine.txt") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def pairs(workload: Workload) -> list[tuple[int, int]]:
    return [(r.prompt_tokens, r.output_tokens) for r in workload.requests]


def refusal(path: Path, format: str = "auto") -> WorkloadError:
    with pytest.raises(WorkloadError) as caught:
        load_workload(path, format)
    assert str(path) in str(caught.value)
    slot = re.compile(r"\{\w+[|#}]")  # a value that the message lacks
    assert not any(slot.search(caught.value.sentence(lang)) for lang in ("en", "zh"))
    return caught.value


@pytest.mark.parametrize("format", FORMATS)
def test_a_format_is_known_by_its_content_whatever_the_name(tmp_path: Path, format: str) -> None:
    for mark in ("", "\ufeff"):
        workload = load_workload(write(tmp_path, mark + GOOD[format]))
        assert workload.format == format
        workload.check()
    assert workload == load_workload(tmp_path / "mine.txt", format)


def test_azure_counts_seconds_from_the_first_request(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, AZURE))
    assert pairs(workload) == [(374, 44), (396, 109), (879, 55)]
    assert [r.arrival for r in workload.requests] == pytest.approx([0, 4.314579, 13.31941])
    assert workload.duration == pytest.approx(13.31941) and workload.notes == ()
    zoned = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.5+00:00,1,2\n"
    assert pairs(load_workload(write(tmp_path, zoned))) == [(1, 2)]


def test_mooncake_keeps_the_names_of_prefixes(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, MOONCAKE))
    assert workload.prefix_unit == 512
    assert workload.requests[0] == WorkloadRequest(0.0, 600, 5, (0, 1))
    assert workload.requests[2] == WorkloadRequest(3.0, 1025, 5, (0, 1, 7))


def test_burstgpt_leaves_failed_requests_out_and_says_so(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, BURST))
    assert pairs(workload) == [(472, 18), (417, 276)]
    assert workload.requests[1].arrival == 40.5
    assert workload.skipped == 1 and workload.notes == (("failed", 1),)
    assert workload.remarks() == ["1 request failed in the recording (no response) and left out."]
    later = BURST.replace("Timestamp,", "Timestamp,Session ID,Elapsed time,").replace(
        "\n5,", "\n5,s1,0.4,"
    )
    later = "\n".join(later.splitlines()[:2])
    assert pairs(load_workload(write(tmp_path, later))) == [(472, 18)]


def test_sharegpt_takes_the_first_two_turns_and_counts_with_the_given_counter(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, SHARE)
    workload = load_workload(path, count=lambda text: len(text.split()))
    assert pairs(workload) == [(3, 2), (1, 1)]
    assert workload.notes == (("at_once", 2), ("short", 2))
    estimated = load_workload(path)
    assert pairs(estimated) == [(4, 3), (1, 1)]
    assert estimated.notes[0] == ("estimated", 2)


def test_a_table_of_lengths_may_name_its_columns_in_its_own_way(tmp_path: Path) -> None:
    assert load_workload(write(tmp_path, LENGTHS)).requests == (
        WorkloadRequest(0.0, 10, 5),
        WorkloadRequest(1.5, 11, 6),
    )
    workload = load_workload(write(tmp_path, "input_tokens,note,output_tokens\n3,x,4\n5,y,6\n"))
    assert pairs(workload) == [(3, 4), (5, 6)]
    assert workload.notes == (("at_once", 2),)


def test_a_limit_takes_the_first_requests_and_reads_no_further(tmp_path: Path) -> None:
    path = write(tmp_path, LENGTHS + "broken\n")
    assert len(load_workload(path, limit=2)) == 2
    with pytest.raises(ConfigError):
        load_workload(path, limit=0)


BAD = [
    ("azure", AZURE.replace("396", "-396"), 3, "workload_count", "-396"),
    ("azure", AZURE.replace(",109", ""), 3, "workload_cells", "2"),
    ("azure", AZURE.replace("2023-11-16 18:16", "yesterday"), 4, "workload_date", "yesterday"),
    ("azure", AZURE.replace("18:15:50", "17:00:00"), 3, "workload_order", "above"),
    ("burstgpt", BURST.replace("45.5", "nan"), 4, "workload_time", "nan"),
    ("burstgpt", BURST.replace("45.5", "-1"), 4, "workload_time", "-1"),
    ("burstgpt", BURST.replace("417", "0"), 4, "workload_count", "Request tokens"),
    ("burstgpt", BURST.replace("417", "4.5"), 4, "workload_count", "4.5"),
    ("lengths", LENGTHS.replace("11", "1048577"), 4, "workload_count", "to 1048576"),
    ("lengths", LENGTHS.replace("11", "1e9"), 4, "workload_count", "1e9"),
    ("lengths", LENGTHS.replace("11", "9" * 5000), 4, "workload_count", "999"),
    ("lengths", LENGTHS.replace("6,11", '6,"11'), 4, "workload_cells", "2"),
    ("mooncake", MOONCAKE.replace("[0, 1, 7]", "[0, 1]"), 3, "workload_name_count", "1025"),
    ("mooncake", MOONCAKE.replace("[0, 1, 7]", '[0, "1", 7]'), 3, "workload_names", "hash_ids"),
    ("mooncake", MOONCAKE.replace("[0, 1, 7]}", "[0, 1"), 3, "workload_broken", "line 3"),
    ("mooncake", MOONCAKE.replace(': 1025', ': "x"'), 3, "workload_count", "x"),
    ("mooncake", MOONCAKE.replace('"input_length": 512', '"no": 1'), 2, "workload_key", "input"),
    ("mooncake", MOONCAKE + "\n[1]", 4, "workload_no_object", "[1]"),
    ("mooncake", MOONCAKE + "\n" + "[" * 100_000, 4, "workload_broken", "line 4"),
    ("sharegpt", SHARE.replace('"alone"', "7").replace("]\n }", ']\n }', 1), 0, "", ""),
    ("sharegpt", SHARE[:-30], 41, "workload_broken", "line 41"),
    ("sharegpt", SHARE.replace('"conversations"', '"talk"', 1), 2, "workload_key", "conversations"),
]  # fmt: skip


@pytest.mark.parametrize(("format", "content", "line", "code", "told"), BAD)
def test_a_bad_row_is_named_with_its_line_and_can_be_skipped(
    tmp_path: Path, format: str, content: str, line: int, code: str, told: str
) -> None:
    path = write(tmp_path, content)
    if not code:
        assert load_workload(path).skipped == 2  # a turn that is never read may be anything
        return
    error = refusal(path)
    assert error.code == code and error.values["line"] == line and told in str(error)
    skipping = load_workload(path, skip_bad_rows=True)
    assert ("bad", 1) in skipping.notes
    good = load_workload(write(tmp_path, GOOD[format]))
    assert len(good) - 1 <= len(skipping) <= len(good)
    skipping.check()


def test_a_header_without_a_column_is_refused_even_when_rows_are_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, AZURE.replace("ContextTokens", "Context"))
    error = refusal(path, "azure")
    assert (error.code, error.values["line"]) == ("workload_column", 1)
    assert "contexttokens" in str(error) and "GeneratedTokens" in str(error)
    with pytest.raises(WorkloadError):
        load_workload(path, "azure", skip_bad_rows=True)
    assert refusal(path).code == "workload_unknown"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "workload_empty"),
        (b" \r\n\n", "workload_empty"),
        (b"\x00\x01\x02" * 99, "workload_binary"),
        (b"prompt,output\n1,2\n\xff\xfe\n", "workload_binary"),
        (b"\xff\xfe1,2", "workload_binary"),
        (gzip.compress(b"prompt,output\n1,2\n"), "workload_compressed"),
        (b"hello, world\n", "workload_unknown"),
        (b"prompt,output\n", "workload_no_requests"),
        (b"[]", "workload_no_requests"),
        (b"[1 2]", "workload_key"),
        (b'[{"conversations": []} 2]', "workload_array"),
        (b'{"a": 1}', "workload_unknown"),
    ],
)
def test_what_is_no_workload_is_refused_in_one_sentence(
    tmp_path: Path, content: bytes, code: str
) -> None:
    assert refusal(write(tmp_path, content)).code == code


def test_a_folder_a_missing_file_and_a_device_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path).code == "workload_folder"
    assert refusal(tmp_path / "none.csv").code == "unreadable"
    assert refusal(Path("/dev/zero")).code == "unreadable"
    with pytest.raises(WorkloadError, match="azure, mooncake"):
        load_workload(write(tmp_path, AZURE), "excel")


def test_a_label_stands_for_the_path_in_messages(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError) as caught:
        load_workload(write(tmp_path, "hello"), label="upload.csv")
    assert str(caught.value).startswith("upload.csv") and str(tmp_path) not in str(caught.value)
    assert load_workload(write(tmp_path, AZURE), label="upload.csv").name == "upload"


def test_every_bad_row_and_note_has_a_sentence() -> None:
    source = "".join(
        path.read_text() for path in (Path(__file__).parents[2] / "core" / "workload").glob("*.py")
    )
    codes = set(re.findall(r'BadRow\(\s*"(\w+)"', source))
    assert len(codes) >= 10
    for code in codes:
        assert f"error.{code}" in catalogue("en")
    for note in ("estimated", "at_once", "retimed", "failed", "short", "bad", "synthetic"):
        assert f"workload.note.{note}" in catalogue("en")


_DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.skipif(not _DATA.is_dir(), reason="the public traces aren't shipped")
def test_the_public_traces_have_their_published_figures() -> None:
    azure = load_workload(_DATA / "AzureLLMInferenceTrace_conv.csv")
    assert (len(azure), azure.max_prompt, azure.max_output) == (19366, 14050, 1000)
    assert azure.duration == pytest.approx(3501.7, abs=0.05)
    assert azure.mean_prompt == pytest.approx(1154.7, abs=0.05)
    assert azure.mean_output == pytest.approx(211.1, abs=0.05)
    mooncake = load_workload(_DATA / "mooncake_conversation_trace.jsonl")
    names = [name for request in mooncake.requests for name in request.prefix]
    assert (len(mooncake), len(names), len(set(names))) == (12031, 288500, 182790)
    azure.check()
    mooncake.check()


@settings(max_examples=400, deadline=None)
@given(
    format=st.sampled_from(FORMATS),
    skip=st.booleans(),
    cuts=st.lists(
        st.tuples(st.integers(0, 700), st.integers(0, 12), st.binary(max_size=6)), max_size=4
    ),
)
def test_whatever_a_file_holds_it_loads_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
    format: str,
    skip: bool,
    cuts: list[tuple[int, int, bytes]],
) -> None:
    content = GOOD[format].encode()
    for place, length, other in cuts:
        content = content[:place] + other + content[place + length :]
    path = tmp_path_factory.getbasetemp() / "mangled"
    path.write_bytes(content)
    for kind in (format, "auto"):
        try:
            load_workload(path, kind, skip_bad_rows=skip).check()
        except WorkloadError as error:
            assert "mangled" in str(error)


def test_a_request_that_comes_absurdly_late_is_a_bad_row(tmp_path: Path) -> None:
    file = tmp_path / "late.csv"
    file.write_text("arrival,prompt,output\n1e300,5,5\n1.1e300,5,6\n")
    with pytest.raises(WorkloadError, match=r"line 3: the request comes 1e\+299 s"):
        load_workload(file, "lengths")
    found = load_workload(file, "lengths", skip_bad_rows=True)
    assert [request.arrival for request in found.requests] == [0.0] and found.skipped == 1


@pytest.mark.parametrize("format", ["azure", "burstgpt", "lengths"])
@pytest.mark.parametrize("kind", ["one line", "a quote that never closes", "many cells"])
def test_a_row_without_an_end_is_one_bad_row_and_never_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, kind: str
) -> None:
    """However long a row is, no more of it than the bound is read at once."""
    monkeypatch.setattr(reading, "_MAX_ROW", 1000)
    head, *rest = GOOD[format].replace("\r", "").strip().split("\n")
    bad = {
        "one line": "7" * 4_000_000,
        "a quote that never closes": '"' + "x\n" * 600,
        "many cells": "1," * 2_000_000,
    }[kind]
    path = write(tmp_path, "\n".join([head, bad, *rest]) + "\n")
    tracemalloc.start()
    try:
        error = refusal(path, format)
        skipping = load_workload(path, format, skip_bad_rows=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.code == "workload_long_line" and error.values["line"] == 2
    assert "1,000 characters" in str(error)
    assert peak < 1 << 20
    good = load_workload(write(tmp_path, GOOD[format]), format)
    assert pairs(skipping) == pairs(good) and dict(skipping.notes)["bad"] >= 1


def test_a_row_of_just_the_bound_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = "5,10," + "0" * 95  # with its line's end one character more
    path = write(tmp_path, f"Output,Prompt,Arrival\n{row}\n6,11,2\n")
    monkeypatch.setattr(reading, "_MAX_ROW", len(row) + 1)
    assert pairs(load_workload(path)) == [(10, 5), (11, 6)]
    monkeypatch.setattr(reading, "_MAX_ROW", len(row))
    assert refusal(path).code == "workload_long_line"
