"""Byte-pair tokens for the language models: GPT-2's own vocabulary, or one trained on a corpus.

The only place where the library `tokenizers` (Hugging Face) is imported.  Both vocabularies work on bytes, cut by
GPT-2's pattern, so any text has tokens and `decode` gives every text back.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
GPT2_FILES = {
    "encoder.json": (1_042_301, "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"),
    "vocab.bpe": (456_318, "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
}
"""Size and SHA-256 of the two files that OpenAI publishes with GPT-2; 50,257 tokens."""


class BytePairTokenizer:
    """Text to token numbers and back; made by `from_gpt2`, `train` or `load`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def from_gpt2(cls, encoder: Path, merges: Path) -> BytePairTokenizer:
        """From GPT-2's `encoder.json` and `vocab.bpe`; whoever fetches them checks `GPT2_FILES`."""
        tokenizer = _on_bytes(models.BPE.from_file(str(encoder), str(merges)))
        tokenizer.add_special_tokens([END_OF_TEXT])
        return cls(tokenizer)

    @classmethod
    def train(cls, texts: Iterable[str], vocabulary_size: int) -> BytePairTokenizer:
        """A vocabulary of the corpus `texts`: end of text, the 256 bytes, then merges; the same for the same texts.

        Raises:
            ValueError: the size has no room for the bytes, or the corpus not enough pairs for the size.
        """
        smallest = 257
        if vocabulary_size < smallest:
            raise ValueError(f"vocabulary_size is {vocabulary_size}; expected at least {smallest}")
        tokenizer = _on_bytes(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary_size,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        if (size := tokenizer.get_vocab_size()) != vocabulary_size:
            raise ValueError(f"vocabulary_size is {vocabulary_size}; the corpus has pairs for {size}")
        return cls(tokenizer)

    @classmethod
    def load(cls, path: Path) -> BytePairTokenizer:
        """From what `save` wrote."""
        return cls(Tokenizer.from_file(str(path)))

    def save(self, path: Path) -> None:
        """Write vocabulary and merges as one JSON file."""
        self._tokenizer.save(str(path))

    @property
    def vocabulary_size(self) -> int:
        return self._tokenizer.get_vocab_size()

    @property
    def end_of_text(self) -> int:
        """The number of the token between documents."""
        token = self._tokenizer.token_to_id(END_OF_TEXT)
        assert token is not None, "every constructor adds it"
        return token

    def encode(self, text: str) -> np.ndarray:
        """int32 [T]; no token is added at either end."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    def decode(self, tokens: np.ndarray) -> str:
        return self._tokenizer.decode(tokens.tolist(), skip_special_tokens=False)


def _on_bytes(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
