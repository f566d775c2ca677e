"""Random tools, questions that one of them answers, and their calls and results, in the words of `template.jinja`."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

from phrases import PHRASES, WORDS, Phrases

_BARE = ("integer", "number", "boolean")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that is about `noun`; `parameters` are names and JSON types."""

    name: str
    noun: str
    parameters: dict[str, str] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """How the template lists the tool."""
        parameters = ", ".join(f'"{key}": "{kind}"' for key, kind in self.parameters.items())
        return f'{{"name": "{self.name}", "arguments": {{{parameters}}}}}'

    def call(self, values: list[str]) -> str:
        """Return the call with these values, in the parameters' order."""
        pairs = zip(self.parameters.items(), values, strict=True)
        arguments = ", ".join(f'"{key}": {literal(value, kind)}' for (key, kind), value in pairs)
        return f'<tool_call>\n{{"name": "{self.name}", "arguments": {{{arguments}}}}}\n</tool_call>'


def literal(value: str, kind: str) -> str:
    """Return a value as JSON of that type."""
    if kind in _BARE:
        return value
    return json.dumps([value] if kind == "array" else value)


class Tools:
    """Draw tools and questions."""

    def __init__(self, phrases: Phrases) -> None:
        self._phrases = phrases
        self._rng: random.Random = phrases.rng

    def some(self) -> list[Tool]:
        """Return one to six tools about different things."""
        [count] = self._rng.choices([1, 2, 3, 4, 6], [0.3, 0.25, 0.2, 0.15, 0.1])
        nouns: list[str] = []
        while len(nouns) < count:
            noun = self._noun()
            if noun not in nouns:
                nouns.append(noun)
        return [self.about(noun) for noun in nouns]

    def stranger(self, tools: list[Tool]) -> Tool:
        """Return a tool about something that none of these is about."""
        while True:
            noun = self._noun()
            if noun not in [tool.noun for tool in tools]:
                return Tool(noun, noun, self.about(noun).parameters)

    def about(self, noun: str) -> Tool:
        """Return a tool about a noun, named in one of the usual ways."""
        rng, draw = self._rng, self._phrases
        verb, prefix = draw.pick("verbs"), draw.syllables().lower()
        ending = rng.choice(["lookup", "search", "info", "tool", "get"])
        [name] = rng.choices(
            [
                f"{verb}_{noun}",
                f"{verb}-{noun}",
                f"{prefix}__{verb}_{noun}",
                f"{prefix}_{verb}_{noun}",
                noun,
                f"{noun}_{ending}",
                f"{verb}{noun.capitalize()}",
            ],
            [0.55, 0.03, 0.04, 0.03, 0.15, 0.1, 0.1],
        )
        [count] = rng.choices([0, 1, 2, 3], [0.12, 0.58, 0.24, 0.06])
        parameters: dict[str, str] = {}
        while len(parameters) < count:
            if rng.random() < 0.25:
                parameters[draw.pick("number_parameters")] = rng.choice(["integer", "number"])
            else:
                odd = rng.random() < 0.08
                parameters[draw.pick("parameters")] = rng.choice(["any", "boolean", "array"]) if odd else "string"
        return Tool(name, noun, parameters)

    def value(self, kind: str) -> str:
        """Return a value of a JSON type, as it stands in a question."""
        rng, draw = self._rng, self._phrases
        if kind == "integer":
            return str(rng.randint(0, 99) if rng.random() < 0.6 else rng.randint(0, 9999))
        if kind == "number":
            return draw.number()
        if kind == "boolean":
            return rng.choice(["true", "false"])
        return draw.pick("cities") if rng.random() < 0.35 else draw.thing()

    def question(self, tool: Tool) -> tuple[str, list[str]]:
        """Return a question for the tool and the values that it holds."""
        rng, draw = self._rng, self._phrases
        keys = list(tool.parameters)
        values = [self.value(kind) for kind in tool.parameters.values()]
        known = {"noun": tool.noun, "name": tool.name}
        if not values:
            return draw.pick("ask_plain").format(**known), values
        if len(values) == 1:
            asked = draw.pick("ask_one").format(key=keys[0], value=values[0], **known)
            return draw.pick("ask_before") + asked + draw.pick("ask_after"), values
        if len(values) == 2 and rng.random() < 0.3:
            return draw.pick("ask_two").format(first=values[0], second=values[1], **known), values
        equals = draw.pick("ask_equals")
        pairs = [f"{key}{equals}{value}" for key, value in zip(keys, values, strict=True)]
        return draw.pick("ask_many").format(**known) + draw.pick("ask_between").join(pairs), values

    def result(self) -> str:
        """Return what a tool might answer."""
        rng, draw = self._rng, self._phrases
        kind = rng.random()
        if kind < 0.45:
            return draw.phrase()
        if kind < 0.6:
            return draw.number() + draw.pick("units")
        if kind < 0.75:
            return ", ".join(draw.thing(1) for _ in range(rng.randint(2, 4)))
        keys = [*PHRASES["parameters"], *PHRASES["number_parameters"], *WORDS[::7]]
        count = rng.randint(1, 3)
        return json.dumps(
            {rng.choice(keys): draw.thing(1) if rng.random() < 0.5 else rng.randint(0, 99) for _ in range(count)}
        )

    def _noun(self) -> str:
        rng = self._rng
        if rng.random() < 0.65:
            return self._phrases.pick("nouns")
        return rng.choice(WORDS) if rng.random() < 0.6 else self._phrases.syllables().lower()
