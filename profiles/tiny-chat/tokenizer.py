"""A byte-level BPE tokenizer whose merges hold neither a space nor a digit.

A word thus has the same tokens wherever it stands (after a space, in quotes, at a line's start), which makes copying it
a matter of repeating tokens. It encodes as llama.cpp does for a GGUF file with the `qwen2` pre-tokenizer.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tools>",
    "</tools>",
)
CONTROL = SPECIAL[:3]  # never printed; the others are, for llama.cpp's parser reads them
MERGES = 760
_MULTIPLE = 64  # the vocabulary is padded to a multiple of this
_PUNCTUATION = (('"', "}"), ('"', ":"), ('"', ","), ("{", '"'), ('"}', "}"))
_NEVER = 1 << 30

# llama.cpp's "qwen2" pre-tokenizer, for ASCII letters and digits.
_PIECES = re.compile(
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]"
    r"| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLIT = re.compile("(" + "|".join(re.escape(word) for word in SPECIAL) + ")")

Pair = tuple[str, str]
Piece = tuple[str, float]  # text and how much its tokens weigh in training


def _byte_letters() -> dict[int, str]:
    """Give every byte a printable letter, as GPT-2 does."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte) for byte in kept} | {byte: chr(256 + index) for index, byte in enumerate(others)}


_LETTERS = _byte_letters()
_BYTES = {letter: byte for byte, letter in _LETTERS.items()}


def train_merges(counts: Mapping[str, int], size: int = MERGES) -> list[Pair]:
    """Learn merges from words of letters and how often each occurs."""
    merges: list[Pair] = list(_PUNCTUATION)
    words = {word: list(word) for word in counts}
    pairs: Counter[Pair] = Counter()
    where: defaultdict[Pair, set[str]] = defaultdict(set)
    for word, symbols in words.items():
        for pair in pairwise(symbols):
            pairs[pair] += counts[word]
            where[pair].add(word)
    while len(merges) < size:
        best, count = max(pairs.items(), key=lambda item: (item[1], item[0]))
        if count < 2:
            break
        merges.append(best)
        for word in list(where[best]):
            for pair in pairwise(words[word]):
                pairs[pair] -= counts[word]
            words[word] = _merged(words[word], best)
            for pair in pairwise(words[word]):
                pairs[pair] += counts[word]
                where[pair].add(word)
        del pairs[best]
    return merges


def _merged(symbols: Sequence[str], pair: Pair) -> list[str]:
    out: list[str] = []
    index = 0
    while index < len(symbols):
        if tuple(symbols[index : index + 2]) == pair:
            out.append(symbols[index] + symbols[index + 1])
            index += 2
        else:
            out.append(symbols[index])
            index += 1
    return out


class Tokenizer:
    """Encode and decode text with given merges."""

    def __init__(self, merges: Iterable[Sequence[str]]) -> None:
        self.merges: list[Pair] = [(first, second) for first, second in merges]
        self.tokens = [_LETTERS[byte] for byte in range(256)] + [first + second for first, second in self.merges]
        self.first_special = len(self.tokens)
        self.tokens += SPECIAL
        while len(self.tokens) % _MULTIPLE:
            self.tokens.append(f"<|unused{len(self.tokens)}|>")
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; special tokens are recognised anywhere in it."""
        ids: list[int] = []
        for part in _SPLIT.split(text):
            if part in SPECIAL:
                ids.append(self.ids[part])
            else:
                for piece in _PIECES.finditer(part):
                    ids += self._word(piece.group())
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids."""
        data = b""
        for index in ids:
            token = self.tokens[index]
            data += token.encode() if index >= self.first_special else bytes(_BYTES[letter] for letter in token)
        return data.decode("utf-8", "replace")

    def encode_pieces(self, pieces: Sequence[Piece]) -> tuple[list[int], list[float]]:
        """Encode joined pieces of ASCII text; a token weighs what the piece its first letter lies in does."""
        ids = self.encode("".join(text for text, _ in pieces))
        weights: list[float] = []
        position, index, end = 0, 0, len(pieces[0][0])
        for token in ids:
            while position >= end:
                index += 1
                end += len(pieces[index][0])
            weights.append(pieces[index][1])
            position += len(self.tokens[token])
        return ids, weights

    def _word(self, word: str) -> list[int]:
        known = self._known.get(word)
        if known is None:
            symbols = [_LETTERS[byte] for byte in word.encode()]
            while len(symbols) > 1:
                pairs = list(pairwise(symbols))
                rank, at = min((self._ranks.get(pair, _NEVER), index) for index, pair in enumerate(pairs))
                if rank == _NEVER:
                    break
                symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
            known = self._known[word] = [self.ids[symbol] for symbol in symbols]
        return known
