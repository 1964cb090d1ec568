"""What Python sends and registers: one value of bytes, and one module a component."""

import json
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from app.player.component import (
    CompareRun,
    CompareState,
    _compare_script,
    _compare_state,
    pack_runs,
    strings,
)


def test_logs_follow_each_other_behind_options_that_name_their_lengths() -> None:
    runs = [CompareRun(b"abc", "One"), CompareRun(b"\x00\xff", "两个", "detail")]
    packed = pack_runs(runs, lang="zh", theme="dark")
    (length,) = struct.unpack_from("<I", packed)
    options = json.loads(packed[4 : 4 + length])
    assert packed[4 + length :] == b"abc\x00\xff"
    assert [(run["title"], run["detail"], run["bytes"]) for run in options["runs"]] == [
        ("One", "", 3),
        ("两个", "detail", 2),
    ]
    assert options["theme"] == "dark"
    assert options["strings"] == strings("zh")


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_comparison_joins_the_players_file_into_one_module(tmp_path: Path) -> None:
    """A component's module is loaded from memory, where no other file can be imported."""
    script = _compare_script() + "export default compareComponent;\n"
    assert "import {" not in script
    path = tmp_path / "compare.mjs"
    path.write_text(script, encoding="utf-8")
    check = f"import({json.dumps(path.as_uri())}).then((m) => process.stdout.write(m.default.name))"
    done = subprocess.run(["node", "-e", check], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("compareComponent", "")


def test_what_the_page_tells_becomes_a_state() -> None:
    assert _compare_state({"cursor": None}) == CompareState()
    told = {
        "cursor": {"clock": "token", "at": 41, "step": 9},
        "fork": {"step": 9},
        "open": {"index": 1, "event": 300},
    }
    assert _compare_state(told) == CompareState("token", 41, 9, 9, 1, 300)
