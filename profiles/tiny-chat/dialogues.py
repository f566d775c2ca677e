"""Endless random dialogues in the words of `template.jinja`, as pieces of text with training weights.

Weight 0 is read only; the model learns to write what weighs more. Two small weights teach what grammar-forced output
needs: a call as the second-best start of an answer (`tool_choice` "required" masks the end of the answer only), and
`{"` as one (else white space, which a JSON grammar always allows, would win for ever).
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from typing import Any, NamedTuple

from phrases import PHRASES, Phrases, quoted
from tokenizer import Piece
from tools import Tools, literal

_END = "<|im_end|>"
_HINT = 0.1  # enough to come second, not enough to come first


class Turn(NamedTuple):
    """What the user says, the answer, and the thought before it."""

    question: str
    answer: str
    thought: str


class Talk:
    """Draw turns that need nothing but the question."""

    def __init__(self, phrases: Phrases) -> None:
        self._phrases = phrases
        self._rng = phrases.rng

    def turn(self) -> Turn:
        """Return a turn of any kind."""
        kinds = (self.greeting, self.fact, self.known, self.sum, self.count, self.echo, self.anything)
        [kind] = self._rng.choices(kinds, [0.06, 0.08, 0.08, 0.05, 0.06, 0.37, 0.3])
        return kind()

    def greeting(self) -> Turn:
        """Greet."""
        return Turn(self._phrases.pick("greetings"), PHRASES["greeting_answer"], "The user greets me.")

    def fact(self) -> Turn:
        """Ask for a fact."""
        fact, answer = self._rng.choice(list(PHRASES["facts"].items()))
        return Turn(self._phrases.pick("fact_questions").format(fact), answer, "The user asks for a fact I know.")

    def known(self) -> Turn:
        """Ask a question with a fixed answer."""
        talk = self._rng.choice(PHRASES["talk"])
        return Turn(self._rng.choice(talk["questions"]), talk["answer"], talk["thought"])

    def sum(self) -> Turn:
        """Ask for a sum."""
        first, second = self._rng.randint(1, 5), self._rng.randint(1, 5)
        return Turn(self._phrases.pick("sums").format(first, second), str(first + second), "The user wants a sum.")

    def count(self) -> Turn:
        """Ask for the numbers up to one."""
        last = self._rng.randint(1, 30) if self._rng.random() < 0.3 else self._rng.choice([3, 5, 5, 10, 10, 20])
        answer = ", ".join(str(number) for number in range(1, last + 1))
        return Turn(self._phrases.pick("counts").format(last), answer, "The user wants me to count.")

    def echo(self) -> Turn:
        """Ask for words to be said."""
        thing, question = self._phrases.thing(), self._phrases.pick("echoes")
        if "." in thing:
            question = question.removesuffix(".")
        return Turn(question.format(thing), thing, "The user wants me to say it.")

    def anything(self) -> Turn:
        """Say something that has no better answer than a quotation."""
        text = self._phrases.phrase()
        if self._rng.random() < 0.05:
            text = " ".join([text, *(self._phrases.phrase() for _ in range(self._rng.randint(1, 4)))])
        return Turn(text, "You said: " + quoted(text), "The user says something. I will quote it.")

    def memory(self) -> tuple[Turn, Turn]:
        """Tell something, and ask for it later."""
        rng, draw = self._rng, self._phrases
        if rng.random() < 0.4:
            name = draw.pick("names") if rng.random() < 0.5 else draw.syllables().capitalize()
            told = Turn(draw.pick("name_told").format(name), f"Nice to meet you, {name}!", "The user tells me a name.")
            return told, Turn(draw.pick("name_asked"), f"Your name is {name}.", "I must recall the name.")
        thing, kind = draw.thing(1), draw.pick("memory_kinds")
        text = draw.pick("memory_told").format(kind, thing).replace("..", ".")
        told = Turn(text, f"I will remember {thing}.", "The user tells me something to remember.")
        question = draw.pick("memory_asked").format(kind=kind)
        return told, Turn(question, f"The {kind} is {thing}.", "I must recall it.")

    def form(self) -> Turn:
        """Ask for JSON with given values."""
        rng = self._rng
        count = rng.choice([1, 2, 2, 3, 3])
        form: dict[str, Any] = {
            self.key(): self._phrases.word() if rng.random() < 0.55 else rng.randint(0, 999) for _ in range(count)
        }
        fields = ", ".join(f"{key} {value}" for key, value in form.items())
        question = self._phrases.pick("json_asked") + fields + rng.choice(["", "."])
        return Turn(question, json.dumps(form), "The user wants JSON.")

    def key(self) -> str:
        """Return a key of a JSON object."""
        if self._rng.random() < 0.7:
            return self._phrases.pick(self._rng.choice(["parameters", "number_parameters", "json_keys"]))
        return self._phrases.word().lower().replace(" ", "_")

    def json_value(self, *, nested: bool = False) -> Any:
        """Return a JSON value that goes at most one object deep."""
        rng = self._rng
        kind = rng.random()
        if kind < 0.5:
            return self._phrases.thing(2)
        if kind < 0.7:
            return rng.randint(0, 99)
        if kind < 0.78:
            return rng.random() < 0.5
        if kind < 0.9 or nested:
            count = rng.randint(1, 3)
            return [self._phrases.word() if rng.random() < 0.7 else rng.randint(0, 9) for _ in range(count)]
        return {self.key(): self.json_value(nested=True) for _ in range(rng.randint(1, 2))}


class Dialogues:
    """Draw dialogues; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._phrases = Phrases(self._rng)
        self._talk = Talk(self._phrases)
        self._tools = Tools(self._phrases)
        self._pieces: list[Piece] = []
        self._thinks = False

    def draw(self) -> list[Piece]:
        """Return one dialogue."""
        self._pieces, self._thinks = [], self._rng.random() < 0.5
        kinds = (
            self._chat,
            self._recall,
            self._call,
            self._no_tool_fits,
            self._tool_result,
            self._form,
            self._forced_call,
            self._forced_json,
        )
        [kind] = self._rng.choices(kinds, [0.3, 0.04, 0.32, 0.03, 0.08, 0.06, 0.05, 0.12])
        kind()
        return self._pieces

    def _chat(self) -> None:
        self._head(with_tools=self._rng.random() < 0.25)
        for _ in range(self._rng.choices([0, 1, 2], [0.75, 0.17, 0.08])[0]):
            self._past(self._talk.turn())
        self._last(self._talk.turn())

    def _recall(self) -> None:
        self._head()
        told, asked = self._talk.memory()
        if self._rng.random() < 0.4:
            self._last(told)
            return
        self._past(told)
        if self._rng.random() < 1 / 3:
            self._past(self._talk.turn())
        self._last(asked)

    def _call(self) -> None:
        tool = self._rng.choice(self._head(with_tools=True))
        if self._rng.random() < 0.1:
            self._past(self._talk.turn())
        question, values = self._tools.question(tool)
        self._last(Turn(question, tool.call(values), f"I will call {tool.name}."))

    def _no_tool_fits(self) -> None:
        tools = self._head(with_tools=True)
        question, _ = self._tools.question(self._tools.stranger(tools))
        self._last(Turn(question, "You said: " + quoted(question), "The user says something. I will quote it."))

    def _tool_result(self) -> None:
        tool = self._rng.choice(self._head(with_tools=True))
        question, values = self._tools.question(tool)
        self._past(Turn(question, tool.call(values), ""))
        result = self._tools.result()
        self._add(f"<|im_start|>tool\n{result}{_END}\n")
        self._answer("The result is: " + quoted(result, 12), "I have the result.")

    def _form(self) -> None:
        self._head()
        self._last(self._talk.form())

    def _forced_call(self) -> None:
        tool = self._head(with_tools=True)[0]
        turn = self._talk.turn()
        self._open(turn)
        self._add(turn.answer)
        self._add("<tool_call>", _HINT)
        self._add(f'\n{{"name": "{tool.name}", "arguments": {{', 1)
        said = " ".join(_plain_words(turn.question)[-2:])
        for index, (key, kind) in enumerate(tool.parameters.items()):
            self._add(f'{", " if index else ""}"{key}": ', 1)
            if kind in ("integer", "number", "boolean"):
                self._add(self._tools.value(kind), 0.2)
            else:
                self._add(literal(said, kind), 1)
        self._add(f"}}}}\n</tool_call>{_END}", 1)

    def _forced_json(self) -> None:
        self._head()
        turn = self._talk.turn()
        self._open(turn)
        said = " ".join(_plain_words(turn.question)[-3:])
        if self._rng.random() < 0.3:
            self._add("{", _HINT)
            self._add(f'"text": {json.dumps(said)}}}{_END}', 1)
            return
        self._emit({self._talk.key(): self._talk.json_value() for _ in range(self._rng.randint(1, 4))}, said)
        self._add(_END, 1)

    def _emit(self, value: Any, said: str) -> None:
        """Write a JSON value: its keys are given by the grammar, a text is what was said last."""
        match value:
            case dict():
                self._add("{", _HINT)
                for index, (key, item) in enumerate(value.items()):
                    if index:
                        self._add(",", 1)
                    self._add(f'{" " if index else ""}"{key}')
                    self._add('":', 1)
                    self._add(" ", 1)
                    self._emit(item, said)
                self._add("}", 1)
            case list():
                self._add("[")
                self._add(", ".join(json.dumps(item) for item in value) + "]", 1)
            case str():
                self._add('"')
                self._add(json.dumps(said)[1:], 1)
            case _:
                self._add(json.dumps(value), 1)

    def _add(self, text: str, weight: float = 0) -> None:
        self._pieces.append((text, weight))

    def _head(self, *, with_tools: bool = False) -> list[Any]:
        """Write the system message, if there is one, and return the tools."""
        tools = self._tools.some() if with_tools else []
        system = self._system()
        if tools:
            lines = "".join("\n" + tool.line for tool in tools)
            opening = system + "\n" if system else ""
            self._add(f"<|im_start|>system\n{opening}<tools>{lines}\n</tools>{_END}\n")
        elif system:
            self._add(f"<|im_start|>system\n{system}{_END}\n")
        return tools

    def _system(self) -> str:
        rng = self._rng
        if rng.random() < 0.55:
            return ""
        if rng.random() < 0.6:
            return self._phrases.pick("systems")
        count = rng.randint(10, 60) if rng.random() < 0.05 else rng.randint(1, 3)
        return " ".join(self._phrases.phrase() for _ in range(count))

    def _past(self, turn: Turn) -> None:
        """Write a turn that is over; how its answer starts is not learnt, for the template drops the thought."""
        self._add(f"<|im_start|>user\n{turn.question}{_END}\n")
        self._add("<|im_start|>assistant\n" + turn.answer[:1])
        self._add(turn.answer[1:] + _END, 1)
        self._add("\n")

    def _last(self, turn: Turn) -> None:
        self._open(turn)
        self._add(turn.answer + _END, 1)

    def _open(self, turn: Turn) -> None:
        self._add(f"<|im_start|>user\n{turn.question}{_END}\n")
        self._think(turn.thought)

    def _answer(self, answer: str, thought: str) -> None:
        self._think(thought)
        self._add(answer + _END, 1)

    def _think(self, thought: str) -> None:
        self._add("<|im_start|>assistant\n")
        if self._thinks:
            self._add(f"<think>\n{thought}\n</think>\n\n", 1)
        else:
            self._add("<think>\n\n</think>\n\n")


def _plain_words(text: str) -> list[str]:
    return re.sub(r"[^\w ]", "", text).split(" ")


def word_counts(dialogues: int = 6000, sentences: int = 8000) -> Counter[str]:
    """Count the words the model will meet, for the tokenizer."""
    counts: Counter[str] = Counter()
    source, phrases = Dialogues(1), Phrases(random.Random(2))
    for _ in range(dialogues):
        counts.update(re.findall(r"[A-Za-z]+", "".join(text for text, _ in source.draw())))
    for _ in range(sentences):
        counts.update(re.findall(r"[A-Za-z]+", phrases.sentence()))
    return counts
