"""Text to tokens and back, one token at a time and never half a character.

A character of Chinese or an emoji can span several tokens. Each token's text is what it
completes: "" while a character is unfinished, then the whole character. All pieces together are
what decoding all tokens at once gives, and a token's cost does not grow with the text before it.

Byte-level tokenizers are decoded byte by byte. Others are decoded in a short window of tokens,
where a run of byte tokens waits for its end: only then does their decoder know whether the bytes
are characters.
"""

import codecs
import json
import re
from collections.abc import Sequence
from copy import copy
from typing import Any, Protocol

from core.errors import ModelError

__all__ = ["TextCodec", "TextStream"]

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_REPLACEMENT = "�"
# Tokens kept before the pending ones: enough for a decoder that joins a token to the one before.
_CONTEXT = 4


class TextStream(Protocol):
    """Text that grows by one token at a time."""

    def push(self, token_id: int) -> str:
        """The text that the token completes."""

    def flush(self) -> str:
        """The rest: what an unfinished character decodes to."""

    def copy(self) -> "TextStream":
        """An independent stream with the same past, for a forked sequence."""


class TextCodec:
    """A model's tokenizer.

    Args:
        tokenizer: of transformers.
        name: the model's name, for error messages.
    """

    def __init__(self, tokenizer: Any, name: str = "") -> None:
        self._tokenizer = tokenizer
        self._name = name
        self._special = frozenset(tokenizer.all_special_ids)
        self._byte_level = _is_byte_level(tokenizer)
        self._bytes: dict[int, bytes] = {}

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        """Token ids of a prompt; with `chat` as a user's message in the model's chat template.

        Raises:
            ModelError: the model has no chat template.
        """
        if not chat:
            ids: list[int] = self._tokenizer(text)["input_ids"]
            return ids
        if not self._tokenizer.chat_template:
            raise ModelError("model_no_chat", name=self._name)
        messages = [{"role": "user", "content": text}]
        result = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True
        )
        return list(result["input_ids"])

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of all tokens at once."""
        text: str = self._tokenizer.decode(
            list(token_ids),
            skip_special_tokens=skip_special,
            clean_up_tokenization_spaces=False,
        )
        return text

    def stream(self, *, skip_special: bool = True) -> TextStream:
        """A stream without a past; marks such as the end of the text are left out by default."""
        if self._byte_level:
            return _ByteStream(self, skip_special)
        return _WindowStream(self, skip_special)

    def pieces(self, token_ids: Sequence[int], *, skip_special: bool = False) -> tuple[str, ...]:
        """The text that each token completes; the last one also gets what stays unfinished."""
        if not token_ids:
            return ()
        stream = self.stream(skip_special=skip_special)
        texts = [stream.push(token_id) for token_id in token_ids]
        texts[-1] += stream.flush()
        return tuple(texts)

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a mark and not text."""
        return token_id in self._special

    def token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of a token; None for an id that it lacks."""
        spelling: str | None = self._tokenizer.convert_ids_to_tokens(int(token_id))
        return spelling

    def token_bytes(self, token_id: int) -> bytes:
        """What a token of a byte-level vocabulary adds to the text."""
        found = self._bytes.get(token_id)
        if found is None:
            spelling = self.token(token_id) or ""
            try:
                found = bytes(_BYTE_OF[letter] for letter in spelling)
            except KeyError:  # an added token: it stands for its own letters
                found = spelling.encode()
            self._bytes[token_id] = found
        return found


class _ByteStream:
    """Bytes in, characters out; an invalid byte becomes the replacement character."""

    def __init__(self, codec: TextCodec, skip_special: bool) -> None:
        self._codec = codec
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        if self._skip_special and self._codec.is_special(token_id):
            return ""
        return self._decoder.decode(self._codec.token_bytes(token_id))

    def flush(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text

    def copy(self) -> "_ByteStream":
        other = _ByteStream(self._codec, self._skip_special)
        other._decoder.setstate(self._decoder.getstate())
        return other


class _WindowStream:
    """Decodes the pending tokens behind a few of their predecessors, and takes what is new."""

    def __init__(self, codec: TextCodec, skip_special: bool) -> None:
        self._codec = codec
        self._skip_special = skip_special
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        if self._skip_special and self._codec.is_special(token_id):
            return ""
        spelling = self._codec.token(token_id)
        if spelling is not None and _BYTE_TOKEN.fullmatch(spelling):
            self._pending.append(token_id)
            return ""
        self._pending.append(token_id)
        text = self._new_text()
        if text.endswith(_REPLACEMENT) and len(self._pending) < 2 * _CONTEXT:
            return ""
        self._settle()
        return text

    def flush(self) -> str:
        text = self._new_text() if self._pending else ""
        self._settle()
        return text

    def copy(self) -> "_WindowStream":
        other = copy(self)
        other._context = self._context.copy()
        other._pending = self._pending.copy()
        return other

    def _new_text(self) -> str:
        skip = self._skip_special
        before = self._codec.decode(self._context, skip_special=skip) if self._context else ""
        return self._codec.decode(self._context + self._pending, skip_special=skip)[len(before) :]

    def _settle(self) -> None:
        self._context = (self._context + self._pending)[-_CONTEXT:]
        self._pending = []


def _is_byte_level(tokenizer: Any) -> bool:
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return False
    return bool(json.loads(decoder.__getstate__())["type"] == "ByteLevel")


def _byte_letters() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones as themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    letters.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return letters


_BYTE_OF = _byte_letters()
