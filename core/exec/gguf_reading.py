"""Makes transformers read a GGUF file once, and quietly.

transformers parses the whole file anew for the configuration, the tokenizer and the weights, and
rebuilds a table of names for every layer; both take most of the time of a load. Its reader also
shows a progress bar that its own switch doesn't reach. It does not know models.
"""

import functools
import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging as transformers_logging

__all__ = ["gguf_read_once"]

_CONSTANT = ("GGUFReader", "get_tensor_name_map")  # the same result for the same arguments
_lock = threading.RLock()


@contextmanager
def gguf_read_once() -> Iterator[None]:
    """Within it, a GGUF file is parsed at most once; afterwards nothing is kept of it."""
    gguf: Any = importlib.import_module("gguf")
    loader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    with _lock:
        plain = {name: getattr(gguf, name) for name in _CONSTANT}
        bar = loader.tqdm
        for name, function in plain.items():
            setattr(gguf, name, functools.cache(function))
        loader.tqdm = transformers_logging.tqdm  # obeys `disable_progress_bar`
        try:
            yield
        finally:
            loader.tqdm = bar
            for name, function in plain.items():
                setattr(gguf, name, function)
