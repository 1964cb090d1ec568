"""A page painted without a browser, for tests of what stands on it."""

from html import unescape
from pathlib import Path

from streamlit.testing.v1 import AppTest

_MAIN = Path(__file__).parents[2] / "app" / "main.py"


def painted(script: str, lang: str = "en") -> AppTest:
    """The page of a script in `app_pages`, painted without an exception."""
    page = AppTest.from_file(str(_MAIN), default_timeout=60)
    page.query_params["lang"] = lang
    page.run()
    page.switch_page(f"app_pages/{script}.py").run()
    assert not page.exception
    return page


def html(page: AppTest) -> str:
    """All HTML on it, entities resolved."""
    return unescape("\n".join(str(item.proto.body) for item in page.get("html")))
