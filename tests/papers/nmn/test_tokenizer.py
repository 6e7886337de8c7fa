"""Byte-pair tokens: every text comes back, vocabularies are the same again, GPT-2's files are read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.papers.nmn.tokenizer import BytePairTokenizer

CORPUS = ["the cat sat on the mat and the rat sat on the cat\n", "That hat, the fat cat's; they sat!\n"] * 3


@pytest.fixture(scope="module")
def trained() -> BytePairTokenizer:
    return BytePairTokenizer.train(CORPUS, 280)


@settings(max_examples=50)
@given(st.text())
def test_every_text_comes_back(trained: BytePairTokenizer, text: str) -> None:
    tokens = trained.encode(text)
    assert tokens.dtype == np.int32
    assert trained.decode(tokens) == text
    assert not len(tokens) or (tokens.min() >= 0 and tokens.max() < 280)


def test_frequent_words_become_one_token_and_the_text_shorter_than_its_bytes(trained: BytePairTokenizer) -> None:
    assert len(trained.encode(" the")) == 1
    assert len(trained.encode(CORPUS[0])) < len(CORPUS[0].encode()) / 2


def test_the_same_corpus_gives_the_same_vocabulary(trained: BytePairTokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path / "a.json")
    BytePairTokenizer.train(CORPUS, 280).save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_saved_vocabulary_is_the_same_when_loaded(trained: BytePairTokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path / "vocabulary.json")
    loaded = BytePairTokenizer.load(tmp_path / "vocabulary.json")
    assert (loaded.vocabulary_size, loaded.end_of_text) == (280, trained.end_of_text) == (280, 0)
    assert loaded.encode(CORPUS[1]).tolist() == trained.encode(CORPUS[1]).tolist()


def test_files_in_gpt2s_form_are_read(tmp_path: Path) -> None:
    """Merges by hand: t h -> th, th e -> the, a space (Ġ) before it last; greedy by rank, as GPT-2 has it."""
    vocabulary = ["t", "h", "e", "Ġ", "a", "th", "the", "Ġthe", "<|endoftext|>"]
    (tmp_path / "encoder.json").write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\nt h\nth e\nĠ the\n", encoding="utf-8")
    tokenizer = BytePairTokenizer.from_gpt2(tmp_path / "encoder.json", tmp_path / "vocab.bpe")
    assert tokenizer.encode("the the that").tolist() == [6, 7, 3, 5, 4, 0]
    assert tokenizer.decode(np.array([6, 7, 8])) == "the the<|endoftext|>"
    assert (tokenizer.vocabulary_size, tokenizer.end_of_text) == (9, 8)


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="vocabulary_size is 256; expected at least 257"):
        BytePairTokenizer.train(CORPUS, 256)
    with pytest.raises(ValueError, match="vocabulary_size is 5000; the corpus has pairs for"):
        BytePairTokenizer.train(CORPUS, 5000)
