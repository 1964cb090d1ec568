"""The server's start: ports, settings, one line."""

import socket

import pytest

from app import serve
from core.errors import ConfigError


def test_a_taken_port_is_refused_by_name() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)):
            serve.serve(port=port, open_browser=False)


def test_a_free_port_is_free() -> None:
    port = serve.free_port()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


def test_one_line_names_the_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[tuple[str, int]] = []
    monkeypatch.setattr(serve, "_run", lambda address, port: started.append((address, port)))
    serve.serve(lang="zh", open_browser=False)
    ((address, port),) = started
    assert address == "127.0.0.1"
    assert capsys.readouterr().out == f"glassblock: http://127.0.0.1:{port}/?lang=zh\n"


def test_nothing_is_watched_and_nothing_is_sent() -> None:
    flat = serve.settings()
    assert flat["server.fileWatcherType"] == "none"
    assert flat["browser.gatherUsageStats"] is False
    assert flat["runner.magicEnabled"] is False
    assert flat["client.showErrorDetails"] == "none"
