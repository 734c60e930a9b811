"""Pieces: a run is read as text without its tokenizer, byte for byte what the tokenizer would say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from sotscope.models.pieces import PieceTable
from sotscope.store.tokens import Pieces
from sotscope.testing.tiny import tiny
from sotscope.testing.tokenizers import byte_tokenizer, metaspace_tokenizer


def with_marks() -> Any:
    """A tokenizer with special tokens that have no name of their own, as code models have many of."""
    tokenizer = byte_tokenizer(thinking=True)
    tokenizer.add_tokens([AddedToken("<|file|>", special=True), AddedToken("café", special=False)])
    return tokenizer


BYTES, WORDS, MARKS = byte_tokenizer(), metaspace_tokenizer(("a", "b", "ab", "cd")), with_marks()


def pieces_of(tokenizer: Any, ids: list[int]) -> Pieces:
    table = PieceTable(tokenizer)
    found = Pieces()
    for piece in map(table.piece, ids):
        found.raw[piece.id], found.data[piece.id] = piece.raw, piece.data
        if piece.special:
            found.special.add(piece.id)
    return found


def decoded(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


@given(st.lists(st.one_of(st.integers(0, 255), st.integers(256, 261)), max_size=20))
def test_pieces_of_any_bytes_join_to_what_they_decode_to(ids: list[int]) -> None:
    assert pieces_of(MARKS, ids).text(ids) == decoded(MARKS, ids)


@given(st.text(max_size=20))
def test_pieces_of_a_text_join_to_it(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    ids = BYTES(text)["input_ids"]
    assert pieces_of(BYTES, ids).text(ids) == text


@given(st.text("abcd xé€😀▁", max_size=16))
def test_pieces_of_words_and_byte_fallback_join_to_what_they_decode_to(text: str) -> None:
    ids = WORDS(text)["input_ids"]
    assert pieces_of(WORDS, ids).text(ids) == decoded(WORDS, ids)


def test_every_piece_of_words_has_its_bytes() -> None:
    table = PieceTable(WORDS)
    ids = WORDS("a b €")["input_ids"]
    assert [table.piece(i).raw for i in ids] == ["<s>", "▁a", "▁b", "▁", "<0xE2>", "<0x82>", "<0xAC>"]
    assert [table.piece(i).data for i in ids[1:]] == [b" a", b" b", b" ", b"\xe2", b"\x82", b"\xac"]


def test_a_special_token_without_a_role_is_special() -> None:
    (mark,) = MARKS.convert_tokens_to_ids(["<|file|>"])
    assert mark not in MARKS.all_special_ids
    assert PieceTable(MARKS).piece(mark).special
    assert not PieceTable(MARKS).piece(mark + 1).special  # an added word


def test_ids_that_the_tokenizer_does_not_know_have_a_name_and_no_text() -> None:
    piece = PieceTable(BYTES).piece(9999)  # embeddings are padded to round numbers, tokenizers are not
    assert (piece.raw, piece.data) == ("<9999>", b"")


def test_labels_show_spaces_special_tokens_and_single_bytes() -> None:
    ids = BYTES("a \n\té")["input_ids"]
    pieces = pieces_of(BYTES, [*ids, 256])
    assert [pieces.label(i) for i in ids] == ["a", "␣", "⏎", "⇥", "<C3>", "<A9>"]
    assert pieces.label(256) == "<|im_start|>"
    assert pieces.label(-1) == ""


def test_labels_of_words_show_the_space_before_them() -> None:
    ids = WORDS("a b")["input_ids"]
    pieces = pieces_of(WORDS, ids)
    assert [pieces.label(i) for i in ids] == ["<s>", "␣a", "␣b"]


def test_a_run_is_read_as_text_without_its_tokenizer(go: Any) -> None:
    model = tiny("llama", vocab_size=258)
    run = go(model, "Grüße ", tokenizer=BYTES, force="an dich")
    tokens = run.tokens
    assert tokens.text == "Grüße an dich"
    assert tokens.generated == "an dich"
    assert tokens.labels[:5] == ["G", "r", "<C3>", "<BC>", "<C3>"]
    assert tokens.raw[-1] == BYTES.convert_ids_to_tokens(int(tokens.ids[-1]))
    top = {int(i) for i in run.top[0].ravel() if i >= 0}
    assert top <= set(run.pieces.raw), "a likely token cannot be shown"


def test_words_of_a_run_keep_their_spaces_live_and_read_back(go: Any) -> None:
    model = tiny("llama", vocab_size=len(WORDS))
    told: list[str] = []
    run = go(
        model, "a", tokenizer=WORDS, force="b ab cd b", on_step=lambda step, recording: told.append(step.text)
    )  # fmt: skip
    assert run.tokens.text == "a b ab cd b"
    assert run.tokens.ids[0] == 1, "the one BOS"
    assert run.tokens.labels[0] == "<s>"
    assert "".join(told) == run.info()["outcome"]["text"] == "b ab cd b"


@pytest.mark.parametrize("special", [False, True])
def test_special_tokens_are_shown_on_request(special: bool) -> None:
    ids = [256, *BYTES("hi")["input_ids"], 257]
    shown = pieces_of(BYTES, ids).text(ids, special=special)
    assert shown == ("<|im_start|>hi<|im_end|>" if special else "hi")
