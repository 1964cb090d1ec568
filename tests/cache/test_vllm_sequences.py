"""Every line that vLLM 0.33.0 wrote is reproduced; a wrong one is found and named."""

import json
from pathlib import Path
from typing import Any

import pytest

from core.errors import TraceError
from core.vllm_sequence import compare_sequence

_FILES = sorted((Path(__file__).parents[1] / "data" / "vllm_sequences").glob("*.jsonl"))


def test_there_are_thirteen_files() -> None:
    assert len(_FILES) == 13


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_every_line_is_reproduced(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert compare_sequence(path) == (len(lines), None)


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_an_altered_line_is_found_and_named(path: Path, tmp_path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    number = len(lines) // 2
    altered = json.loads(lines[number])
    altered["out"]["free_queue"].append(99)
    lines[number] = json.dumps(altered)
    copy = tmp_path / path.name
    copy.write_text("\n".join(lines), encoding="utf-8")
    equal, difference = compare_sequence(copy)
    assert equal == number
    assert difference is not None
    assert (difference.line, difference.part) == (number + 1, "free_queue")
    assert difference.expected[-1] == 99
    assert difference.actual == difference.expected[:-1]


_INIT = '{"in":{"op":"init","blocks":9,"block_size":4},"out":{}}\n'
_SCHED = '{"in":{"op":"init","blocks":9,"block_size":4,"max_num_seqs":4},"out":{}}\n'
_ADMIT = '{"in":{"op":"admit","id":"a","tokens":[1,2],"salt":null},"out":{}}\n'
_RUBBISH: dict[str, Any] = {
    "no_json": b"hello\n",
    "not_utf8": b"\xff\xfe\x00\n",
    "a_list": b"[1,2]\n",
    "no_out": b'{"in":{"op":"init"}}\n',
    "op_is_a_number": b'{"in":{"op":1},"out":{}}\n',
    "no_init": b'{"in":{"op":"free","id":"a"},"out":{}}\n',
    "zero_blocks": b'{"in":{"op":"init","blocks":0,"block_size":4},"out":{}}\n',
    "blocks_is_a_list": b'{"in":{"op":"init","blocks":[1],"block_size":4},"out":{}}\n',
    "blocks_is_a_fraction": b'{"in":{"op":"init","blocks":9.0,"block_size":4},"out":{}}\n',
    "unknown_op": _INIT + '{"in":{"op":"jump"},"out":{}}\n',
    "unknown_id": _INIT + '{"in":{"op":"free","id":"a"},"out":{}}\n',
    "tokens_is_a_number": _INIT + _ADMIT.replace("[1,2]", "3"),
    "admitted_twice": _INIT + 2 * _ADMIT,
    "abort_of_nobody": _SCHED + '{"in":{"op":"abort","id":"a"},"out":{}}\n',
    "sampled_is_a_list": _SCHED
    + '{"in":{"op":"add","id":"a","tokens":[1],"max_tokens":2,"priority":0,"arrival":0},"out":{}}\n'
    + '{"in":{"op":"step","sampled":[]},"out":{}}\n',
    "deep": b'{"in":' + b"[" * 100_000 + b"\n",
    "empty": b"",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(_RUBBISH))
def test_rubbish_gives_one_sentence(name: str, tmp_path: Path) -> None:
    content = _RUBBISH[name]
    path = tmp_path / "rubbish.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TraceError) as caught:
        compare_sequence(path)
    assert str(path) in caught.value.sentence()
    assert "{" not in caught.value.sentence().replace('{"', "")


def test_a_missing_file_and_a_folder_give_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(TraceError) as caught:
            compare_sequence(path)
        assert caught.value.code == "unreadable"
