"""Random words, names, sentences and questions; it knows nothing of dialogues.

The words are those of `words.txt`, the ways to put them those of `phrases.toml`.
"""

from __future__ import annotations

import random
import re
import string
import tomllib
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_SLOTS = {"n": "nouns", "v": "verbs", "a": "adjectives", "d": "adverbs", "s": "small", "c": "computing"}
_SLOT = re.compile(r"{(.)}")

PHRASES: dict[str, Any] = tomllib.loads((_HERE / "phrases.toml").read_text(encoding="utf-8"))


def _read_words() -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    kind = ""
    for line in (_HERE / "words.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            kind = line.removeprefix("#").strip()
        else:
            kinds.setdefault(kind, []).extend(line.split())
    return kinds


KINDS = _read_words()
WORDS = sorted({word for words in KINDS.values() for word in words})


class Phrases:
    """Draw words and phrases from one random source."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def pick(self, name: str) -> str:
        """Return one of the phrases of that name."""
        phrase: str = self.rng.choice(PHRASES[name])
        return phrase

    def syllables(self) -> str:
        """Return a made-up word."""
        rng = self.rng
        word = "".join(
            rng.choice("bcdfghjklmnprstvwxz")
            + rng.choice("aeiou")
            + (rng.choice("nrlsmt") if rng.random() < 0.4 else "")
            for _ in range(rng.randint(1, 4))
        )
        [shape] = rng.choices([str.lower, str.capitalize, str.upper], [0.5, 0.4, 0.1])
        return shape(word)

    def code(self) -> str:
        """Return an identifier, a path or an abbreviation."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.3:
            return "".join(rng.choice("0123456789abcdef") for _ in range(rng.randint(4, 12)))
        if kind < 0.5:
            return f"{rng.choice(WORDS)}{rng.choice('-_.')}{rng.randint(0, 999)}"
        if kind < 0.65:
            return f"{rng.choice(string.ascii_uppercase)}{rng.randint(1, 9999)}"
        if kind < 0.8:
            folders = "".join("/" + rng.choice(WORDS) for _ in range(rng.randint(1, 3)))
            return folders + rng.choice(["", ".txt", ".json", ".py"])
        return "".join(rng.choice(string.ascii_uppercase) for _ in range(rng.randint(2, 6)))

    def number(self) -> str:
        """Return a number, mostly a small one."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.5:
            return str(rng.randint(0, 99))
        if kind < 0.8:
            return str(rng.randint(0, 99999))
        return f"{rng.random() * 100:.1f}" if kind < 0.9 else str(-rng.randint(1, 50))

    def word(self) -> str:
        """Return a word, a made-up one, a city or a name."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.5:
            return rng.choice(WORDS)
        if kind < 0.7:
            return self.syllables()
        if kind < 0.9:
            return self.pick("cities" if kind < 0.8 else "names")
        word = rng.choice(WORDS)
        return word.capitalize() if kind < 0.97 else word.upper()

    def thing(self, longest: int = 3) -> str:
        """Return a short value of up to so many words."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.15:
            return self.number()
        if kind < 0.25:
            return self.code()
        lengths = [1, 1, 1, 1, 2, 2, 3][: 2 * longest + 1]
        return " ".join(self.word() for _ in range(rng.choice(lengths)))

    def sentence(self) -> str:
        """Return a grammatical sentence without a meaning."""
        return _SLOT.sub(lambda slot: self.rng.choice(KINDS[_SLOTS[slot[1]]]), self.pick("patterns"))

    def phrase(self) -> str:
        """Return some words or a sentence."""
        rng = self.rng
        if rng.random() < 0.1:
            return self.sentence()
        count = rng.choice([1, 2, 3, 3, 4, 4, 5, 6, 7])
        words = [self.word() if rng.random() < 0.9 else self.thing(1) for _ in range(count)]
        return " ".join(words) + rng.choice(["", "", ".", "!", "?"])


def quoted(text: str, longest: int = 8) -> str:
    """Return the first words of a text."""
    words = text.split(" ")
    return " ".join(words[:longest]) + (" ..." if len(words) > longest else "")
