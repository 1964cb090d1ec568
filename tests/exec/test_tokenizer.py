"""Text comes out whole characters at a time and adds up to what decoding at once gives."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from core.errors import ModelError
from core.exec.tokenizer import TextCodec

WORDS = ["Ġthe", "the", "ä½", "好", "ðŁ"]  # fragments: part of a character among them


def _byte_level() -> TextCodec:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate(letters)}
    for word in WORDS:
        if all(letter in vocab for letter in word):
            vocab[word] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return TextCodec(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>"), "tiny")


def _byte_fallback() -> TextCodec:
    pieces: list[tuple[str, float]] = [("<unk>", 0.0)]
    pieces += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    pieces += [(piece, -1.0) for piece in ("▁", "▁the", "a", "b", "▁b", "好", "!")]
    tokenizer = Tokenizer(models.Unigram(pieces, 0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return TextCodec(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>"), "tiny")


CODECS = {"byte level": _byte_level(), "byte fallback": _byte_fallback()}
TEXTS = ["the 好 b", "你好，世界！", "👩‍👩‍👧 a👍🏽b", "the\nthe", "é̂ ﷺ", " leading", ""]


def _spoken(codec: TextCodec, ids: list[int]) -> list[str]:
    stream = codec.stream()
    return [*(stream.push(token_id) for token_id in ids), stream.flush()]


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("text", TEXTS)
def test_streamed_text_equals_decoding_at_once_and_holds_no_half_character(
    name: str, text: str
) -> None:
    codec = CODECS[name]
    ids = codec.encode(text)
    pieces = _spoken(codec, ids)
    assert "".join(pieces) == codec.decode(ids) == text
    assert "�" not in "".join(pieces)


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_tokens_add_up_to_what_decoding_at_once_gives(name: str, data: Any) -> None:
    codec = CODECS[name]
    ids = data.draw(st.lists(st.integers(0, 261), max_size=40))
    assert "".join(_spoken(codec, ids)) == codec.decode(ids)
    assert "".join(codec.pieces(ids)) == codec.decode(ids, skip_special=False)


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=50, deadline=None)
@given(before=st.text(max_size=8), after=st.text(max_size=8))
def test_a_copied_stream_goes_its_own_way(name: str, before: str, after: str) -> None:
    codec = CODECS[name]
    ids, more = codec.encode("好" + before), codec.encode(after)
    stream = codec.stream()
    head = "".join(stream.push(token_id) for token_id in ids[:-1])
    twin = stream.copy()
    left = head + "".join(stream.push(token_id) for token_id in ids[-1:]) + stream.flush()
    right = head + "".join(twin.push(token_id) for token_id in more) + twin.flush()
    assert left == codec.decode(ids)
    assert right == codec.decode(ids[:-1] + more)


def test_a_character_of_three_bytes_appears_with_its_last_token() -> None:
    codec = CODECS["byte level"]
    assert codec.pieces(codec.encode("a好b")) == ("a", "", "", "好", "b")


def test_an_unfinished_character_is_shown_when_the_text_ends() -> None:
    codec = CODECS["byte level"]
    ids = codec.encode("好")[:2]
    assert codec.pieces(ids) == ("", "�")
    assert codec.decode(ids) == "�"


def test_marks_are_left_out_of_streams_and_kept_in_pieces() -> None:
    codec = CODECS["byte level"]
    (end,) = codec.encode("<end>")
    assert codec.is_special(end)
    assert codec.stream().push(end) == ""
    assert codec.pieces([end]) == ("<end>",)


def test_work_for_a_token_does_not_grow_with_the_text_before_it() -> None:
    for codec in CODECS.values():
        lengths: list[int] = []
        decode = codec.decode

        def counted(ids: Any, *, decode: Any = decode, lengths: Any = lengths, **kw: Any) -> str:
            lengths.append(len(ids))
            return decode(ids, **kw)

        stream = codec.stream()
        codec.decode = counted  # type: ignore[method-assign]
        try:
            for token_id in codec.encode("the b! " * 200):
                stream.push(token_id)
        finally:
            del codec.decode
        assert max(lengths, default=0) <= 12


def test_a_model_without_a_chat_template_says_so() -> None:
    with pytest.raises(ModelError, match="tiny has no chat template"):
        CODECS["byte level"].encode("hello", chat=True)
