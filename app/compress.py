"""Compression of Streamlit's own scripts and style sheets, which it serves as they are.

It halves a first visit. Everything else (data, uploads, the socket) passes untouched.
"""

from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["ScriptCompression"]

_LEVEL = 1  # the time of a first visit counts more than 7 % of its bytes
_SUFFIXES = (".js", ".css")


class ScriptCompression:
    """Packs what lies under `/static/` and is text; a browser asks for each once."""

    def __init__(self, app: ASGIApp) -> None:
        self._plain = app
        self._packed = GZipMiddleware(app, minimum_size=1024, compresslevel=_LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        path = str(scope.get("path", ""))
        is_text = path.startswith("/static/") and path.endswith(_SUFFIXES)
        await (self._packed if is_text else self._plain)(scope, receive, send)
