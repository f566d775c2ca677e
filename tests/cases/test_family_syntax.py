"""Reported failures of calls written as text, above all section E of the list of cases, by number, on each wire.

Each answer is cut into pieces of one character, of seven, and left whole, and read streamed and buffered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from app_support import App, app
from families.test_every_wire import ALL_WIRES, SIZES, frames, offered, plain
from wires import WIRES

from deck.canon.events import FinishReason, PartKind
from deck.testing.fake_llama import Reply
from deck.testing.family import Leak, WrittenPart

A = ("read_note", {"path": "a"})
B = ("read_note", {"path": "b"})


@dataclass(frozen=True, slots=True)
class Case:
    """What a family's model wrote, in the parts that llama-server made of it, and what is to be said."""

    number: str
    family: str
    parts: tuple[WrittenPart, ...]
    says: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    thinks: str = ""
    finish: FinishReason = FinishReason.STOP


def text(written: str, kind: PartKind = "text") -> tuple[WrittenPart, ...]:
    return (WrittenPart(kind, written),)


def call(arguments: str) -> WrittenPart:
    return WrittenPart("tool_call", arguments, "read_note")


def xml(path: str, opener: str = "<tool_call>\n", closer: str = "</parameter>\n</function>\n</tool_call>") -> str:
    return f"{opener}<function=read_note>\n<parameter=path>\n{path}\n{closer}"


def dsml(mark: str, section: str = "tool_calls", space: str = "") -> str:
    def tag(name: str, close: str = "") -> str:
        return f"<{close}{mark}{space}{name}>"

    opened, named = tag('invoke name="read_note"'), tag('parameter name="path" string="true"')
    whole = f"{opened}{named}a{tag('parameter', '/')}{tag('invoke', '/')}"
    return f"{tag(section)}{whole}{tag(section, '/')}" if section else whole


D = "｜DSML｜"
TYPED = f"""<{D}function_calls><{D}invoke name="set"><{D}parameter name="n" string="false">5</{D}parameter>\
<{D}parameter name="s" string="true">5</{D}parameter></{D}invoke></{D}function_calls>"""
HARMONY = (
    "<|channel|>analysis<|message|>plan<|end|><|start|>assistant<|channel|>commentary to=functions.read_note"
    ' <|constrain|>json<|message|>{"path":"a"}<|call|>'
)
MINIMAX = '<minimax:tool_call><invoke name="read_note"><parameter name="path">a</parameter></invoke>'
# The template escapes nothing, so what looks like an entity is the text itself: HTML that is written to a file, say.
MINIMAX_TYPES = (
    '<minimax:tool_call><invoke name="set"><parameter name="o">{"k": [1]}</parameter><parameter name="a">[1, 2]'
    '</parameter><parameter name="z">null</parameter><parameter name="s">a &lt; b</parameter></invoke>'
    "</minimax:tool_call>"
)
PLAIN = '<tool_call>{"name":"read_note","arguments":{"path":"%s"}}</tool_call>'
NOTED = (("read_note", {"path": "a<b>.md"}),)

CASES = [
    Case("b26", "minimax", text(f"Let me look.{MINIMAX}</minimax:tool_call>"), "Let me look.", (A,)),
    Case("b109", "qwen", text('<tool_call>\n{"name": "read_note", "arg'), finish=FinishReason.LENGTH),
    Case("b122", "qwen", text("Sure.\n" + xml("a<b>.md")), "Sure.", NOTED),
    Case("b122-no-opener", "qwen", text("Sure.\n" + xml("a<b>.md", "")), "Sure.", NOTED),
    Case("b122-no-closers", "qwen", text("Sure.\n" + xml("a<b>.md", closer="")), "Sure.", NOTED),
    Case("b122-two", "qwen", text(xml("a") + "\n" + xml("b")), "", (A, B)),
    Case(
        "b122-typed",
        "qwen",
        text(
            "<tool_call>\n<function=set>\n<parameter=n>\n5\n</parameter>\n<parameter=flag>\ntrue\n</parameter>\n"
            '<parameter=o>\n{"k": 1}\n</parameter>\n</function>\n</tool_call>'
        ),
        "",
        (("set", {"n": 5, "flag": True, "o": {"k": 1}}),),
    ),
    Case("b124", "qwen", text("I'll check the note first.\n\n" + PLAIN % "a"), "I'll check the note first.", (A,)),
    Case("b125", "qwen", (call('{"path":"a"}'), *text(PLAIN % "b")), "", (A, B)),
    Case("b127", "glm", text("<tool_call>read_note\n<arg_key>path</arg_key>\n<arg_val"), finish=FinishReason.LENGTH),
    Case("b128", "deepseek", text(dsml(D)), "", (A,)),
    Case("b128-section", "deepseek", text(dsml(D, "function_calls")), "", (A,)),
    Case("b128-bare", "deepseek", text(dsml(D, "")), "", (A,)),
    Case("b128-unterminated", "deepseek", text(dsml(D).removesuffix(f"</{D}tool_calls>")), "", (A,)),
    Case(
        "b128-sibling",
        "deepseek",
        text(dsml(D).replace(f"<{D}tool_calls>", f"<{D}tool_calls><{D}invoke>junk</{D}invoke>")),
        "",
        (A,),
    ),
    Case("b128-double-bars", "deepseek", text("hello" + dsml("‖DSML‖")), "hello", (A,)),
    Case("b128-two-marks", "deepseek", text(dsml("｜｜DSML｜｜")), "", (A,)),
    Case("b128-ascii", "deepseek", text(dsml("|DSML|")), "", (A,)),
    Case("b128-spaces", "deepseek", text(dsml("｜｜DSML｜｜", space=" ")), "", (A,)),
    Case("b128-typed", "deepseek", text(TYPED), "", (("set", {"n": 5, "s": "5"}),)),
    Case("b130", "kimi", text("The answer is 4.<|tool_calls_section_end|>"), "The answer is 4."),
    Case("b131", "gpt_oss", text(HARMONY), "", (A,), "plan"),
    Case("b131-final", "gpt_oss", text("<|channel|>final<|message|>Four"), "Four"),
    Case("b131-no-marks", "gpt_oss", text("analysisplan assistantfinalFour"), "analysisplan assistantfinalFour"),
    Case("b133", "mistral", text('[TOOL_CALLS]read_note[ARGS]{"path":"a"}'), "", (A,)),
    Case("b133-list", "mistral", text('[TOOL_CALLS][{"name":"read_note","arguments":{"path":"a"}}]'), "", (A,)),
    Case("b133-prose", "mistral", text("[TOOL_CALLS]I would rather not call."), "I would rather not call."),
    Case(
        "b134",
        "llama",
        text('<|python_tag|>{"type":"function","name":"read_note","parameters":{"path":"a"}}'),
        "",
        (A,),
    ),
    Case("b134-python", "llama", text('<|python_tag|>read_note.call(path="a")'), "", (A,)),
    Case("b134-bare", "llama", text('{"name":"read_note","parameters":{"path":"a"}}'), "", (A,)),
    Case(
        "b134-not-whole",
        "llama",
        text('Such as {"name":"read_note","parameters":{"path":"a"}}'),
        'Such as {"name":"read_note","parameters":{"path":"a"}}',
    ),
    Case("b136", "minimax", text(MINIMAX + "</minimax:tool_call>"), "", (A,)),
    Case("b136-no-close", "minimax", text(MINIMAX), "", (A,)),
    Case(
        "b136-several",
        "minimax",
        text(MINIMAX + MINIMAX.removeprefix("<minimax:tool_call>").replace(">a<", ">b<") + "</minimax:tool_call>"),
        "",
        (A, B),
    ),
    Case(
        "b136-typed",
        "minimax",
        text(MINIMAX_TYPES),
        "",
        (("set", {"o": {"k": [1]}, "a": [1, 2], "z": None, "s": "a &lt; b"}),),
    ),
    Case("b139", "qwen", text(PLAIN % "echo </tool_call> x"), "", (("read_note", {"path": "echo </tool_call> x"}),)),
    Case("b140", "qwen", (call('{"path":"a"}'), *text(PLAIN % "a")), "", (A,)),
]


def written(case: Case, size: int) -> Reply:
    return Reply(steps=list(frames(Leak(name=case.number, parts=case.parts, finish=case.finish), size)))


def profile(family: str) -> dict[str, str]:
    return {"leaky": f'id = "leaky"\nfamily = "{family}"\n{{server}}'}


def answers(running: App, wire: str) -> Iterator[tuple[Any, Any]]:
    """Yield what each of the scripted replies said, and its response, the last one buffered."""
    reads = WIRES[wire]
    for stream in (*(True for _ in SIZES), False):
        body = {**reads.body("hi", stream, 9), "model": "leaky", "tools": offered(wire)}
        answer = running.send("POST", reads.path, json=body)
        assert answer.status_code == 200, answer.text
        yield (reads.stream(answer.content) if stream else reads.whole(answer.json())), answer


def ended(wire: str, case: Case) -> str:
    words = {
        "chat": ("stop", "tool_calls", "length"),
        "messages": ("end_turn", "tool_use", "max_tokens"),
        "responses": ("completed", "completed", "incomplete max_output_tokens"),
    }[wire]
    return words[2] if case.finish is FinishReason.LENGTH else words[bool(case.calls)]


@pytest.mark.parametrize("wire", ALL_WIRES)
@pytest.mark.parametrize("case", CASES, ids=[case.number for case in CASES])
def test_calls_written_as_text(tmp_path: Path, case: Case, wire: str) -> None:
    script = [written(case, size) for size in (*SIZES, 7)]
    with app(tmp_path, script, profiles=profile(case.family)) as running:
        for said, _ in answers(running, wire):
            assert plain(said) == (case.says, case.thinks, list(case.calls))
            assert said.finish == ended(wire, case)


@pytest.mark.parametrize("wire", ALL_WIRES)
def test_b137_a_tool_that_was_not_offered_stays_text(tmp_path: Path, wire: str) -> None:
    shown = '<tool_call>{"name":"delete_all","arguments":{}}</tool_call>'
    case = Case("b137", "qwen", text(shown), shown)
    with app(tmp_path, [written(case, size) for size in (*SIZES, 7)], profiles=profile("qwen")) as running:
        for said, _ in answers(running, wire):
            assert plain(said) == (shown, "", [])
            assert said.finish == ended(wire, case)
