"""Syntaxes whose arguments stand between tags, each after the chat templates and documentation of its makers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from deck.kit.cursor import Cursor, NeedsMore, NotACall, Tag
from deck.kit.syntax import Grammar, WrittenCall, bare_name, call_of, unframed

_NAME = r"[\w.:/-]{1,128}"
_NAMED = re.compile(_NAME)
_LONGEST_NAME = 256
_INVOKED = re.compile(rf'\s+name="({_NAME})"\s*')


class TaggedFunction(Grammar):
    """`<function=name><parameter=key>value</parameter></function>`, alone or within `<tool_call>`.

    A JSON object in place of the parameters is read too: `<function=name>{…}</function>`. Closing tags may be missing
    at the answer's end.
    """

    def __init__(self) -> None:
        super().__init__(("<function=", "<tool_call>"), ("</function>", "</tool_call>"))

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read all functions within the tag, else one."""
        is_tagged = bool(cursor.maybe("<tool_call>"))
        found: list[WrittenCall] = []
        while True:
            cursor.space()
            found.append(self._function(cursor))
            here = cursor.at
            cursor.space()
            if cursor.maybe("</tool_call>"):
                return found
            if not is_tagged or cursor.is_done or not cursor.text.startswith("<function=", cursor.at):
                if is_tagged and not cursor.is_end and "<function=".startswith(cursor.text[cursor.at :]):
                    raise NeedsMore
                cursor.at = here
                return found

    def _function(self, cursor: Cursor) -> WrittenCall:
        begin = cursor.at
        name = bare_name(cursor.tag(_FUNCTION)[1])
        cursor.space()
        if cursor.maybe("{"):
            cursor.at -= 1
            value = cursor.value()[0]
            cursor.space()
            if not cursor.maybe("</function>") and not cursor.is_done:
                raise NotACall
            return call_of({"name": name, "arguments": value}, cursor.since(begin))
        values = self._parameters(cursor)
        return WrittenCall(name, values, cursor.since(begin))

    @staticmethod
    def _parameters(cursor: Cursor) -> dict[str, str]:
        values: dict[str, str] = {}
        while True:
            cursor.space()
            if cursor.is_done and cursor.is_end:
                return values
            if cursor.maybe("</function>") or cursor.stands("</tool_call>"):
                return values
            key = cursor.tag(_PARAMETER)[1].strip()
            values[key] = unframed(cursor.rest("</parameter>"))


_FUNCTION = Tag("<function=", rf'\s*"?({_NAME})"?\s*', r'\s*"?[\w.:/-]{0,128}"?\s*')
_PARAMETER = Tag("<parameter=", r'\s*"?([^">]{1,256})"?\s*', r'\s*"?[^">]{0,256}"?\s*')


class ArgumentPairs(Grammar):
    """`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`."""

    def __init__(self) -> None:
        super().__init__(("<tool_call>",), ("</tool_call>",))

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read the name, then pair after pair."""
        cursor.take("<tool_call>")
        cursor.space()
        name = bare_name(cursor.name())
        values: dict[str, str] = {}
        while True:
            cursor.space()
            if cursor.maybe("</tool_call>") or (cursor.is_done and values):
                return [WrittenCall(name, values, cursor.since(0))]
            cursor.take("<arg_key>")
            key = cursor.until("</arg_key>", within=_LONGEST_NAME).strip()
            cursor.space()
            cursor.take("<arg_value>")
            values[key] = unframed(cursor.until("</arg_value>"))


class Invokes(Grammar):
    """`<invoke name="f"><parameter name="k">v</parameter></invoke>`, usually within an outer tag.

    A call that is broken between sound ones is left out.

    Args:
        outer: names of the outer tag.
        marks: what may stand between `<` or `</` and a tag's name; the first is how the makers write it.
        prefix: stands before every tag, outside of it.
        bare: true = an invocation without the outer tag counts.
    """

    def __init__(
        self, outer: Sequence[str], *, marks: Sequence[str] = ("",), prefix: str = "", bare: bool = False
    ) -> None:
        names = (*outer, "invoke") if bare else tuple(outer)
        spaces = ("", " ") if any(marks) else ("",)
        tags = [f"{mark}{space}" for mark in marks for space in spaces]
        openers = [f"{prefix}<{tag}{name}" for tag in tags for name in names]
        closers = [f"</{tag}{name}>" for tag in tags for name in (*outer, "invoke")]
        super().__init__(openers, closers)
        mark = rf"(?:{'|'.join(re.escape(item) for item in marks)})\s*" if any(marks) else ""
        before = re.escape(prefix)
        self._prefix = prefix
        self._begin = re.compile(rf"{before}<{mark}(?:{'|'.join(map(re.escape, outer))})>")
        self._end = re.compile(rf"{before}</{mark}(?:{'|'.join(map(re.escape, outer))})>")
        self._invoke = re.compile(rf"{before}<{mark}invoke((?:\s[^>=]{{0,100}}=[^>]{{0,300}})?)>")
        self._done = re.compile(rf"{before}</{mark}invoke>")
        self._parameter = re.compile(
            rf'{before}<{mark}parameter\s+name="([^"]{{1,256}})"(?:\s+string="(true|false)")?\s*>(.*?){before}</{mark}'
            r"parameter>",
            re.DOTALL,
        )
        self._named = re.compile(rf"{before}<([\w.-]{{1,128}})>(.*?){before}</\1>", re.DOTALL)

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read all invocations within the tag, else one."""
        is_framed = self._passes(cursor, self._begin)
        found: list[WrittenCall] = []
        while True:
            here = cursor.at
            cursor.space()
            if found and (self._passes(cursor, self._end) or (cursor.is_done and cursor.is_end)):
                break
            if (call := self._one(cursor)) is None:
                cursor.at = here
                break
            found.append(call)
            if not is_framed:
                break
        if not any(call.name for call in found):
            raise NotACall
        return found

    def _passes(self, cursor: Cursor, pattern: re.Pattern[str]) -> bool:
        """Pass over a tag that stands here whole."""
        found = pattern.match(cursor.text, cursor.at)
        if found is not None:
            cursor.at = found.end()
        return found is not None

    def _one(self, cursor: Cursor) -> WrittenCall | None:
        """Read an invocation; None = none stands here."""
        begin = cursor.at
        here = cursor.at + len(self._prefix)
        end = cursor.text.find(">", here, here + 512)
        head = f"{self._prefix}<"
        may_begin = head.startswith(cursor.text[begin : begin + len(head)])
        if end < 0 and may_begin and len(cursor.text) - here < 512 and not cursor.is_end:
            raise NeedsMore
        opened = self._invoke.match(cursor.text, begin)
        if opened is None:
            return None
        closed = self._done.search(cursor.text, opened.end())
        if closed is None and not cursor.is_end:
            raise NeedsMore
        body = cursor.text[opened.end() : closed.start() if closed else len(cursor.text)]
        cursor.at = closed.end() if closed else len(cursor.text)
        values = self._values(body)
        named = _INVOKED.fullmatch(opened[1])
        if values is None or named is None:
            return WrittenCall("", "{}", cursor.since(begin))
        return WrittenCall(bare_name(named[1]), values, cursor.since(begin))

    def _values(self, body: str) -> dict[str, str] | None:
        """Return the parameters of an invocation; None = something else stands among them."""
        values: dict[str, str] = {}
        at, body = 0, body.strip()
        pattern = self._named if self._prefix else self._parameter
        while at < len(body):
            found = pattern.match(body, at)
            if found is None:
                return None
            if pattern is self._named:
                values[found[1]] = found[2]
            else:
                values[found[1]] = found[3] if found[2] == "true" else unframed(found[3])
            at = found.end()
            while at < len(body) and body[at].isspace():
                at += 1
        return values


class SectionedCalls(Grammar):
    """`<|open|>call tool="f"<|sep|><|open|>argument key="k" type="string"<|sep|>v<|close|>argument<|sep|>…`.

    The makers of Kimi K3 call it XTML: a tag's name and attributes stand between two tokens.
    """

    def __init__(self) -> None:
        super().__init__(("<|open|>tools<|sep|>", '<|open|>call tool="'), ("<|close|>call<|sep|>",))

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read all calls of the section, else one."""
        is_framed = bool(cursor.maybe("<|open|>tools<|sep|>"))
        found: list[WrittenCall] = []
        while True:
            cursor.space()
            if found and is_framed and (cursor.maybe("<|close|>tools<|sep|>") or cursor.is_done):
                return found
            found.append(self._one(cursor))
            if not is_framed:
                return found

    @staticmethod
    def _one(cursor: Cursor) -> WrittenCall:
        begin = cursor.at
        cursor.take('<|open|>call tool="')
        name = bare_name(cursor.until('"', within=_LONGEST_NAME))
        cursor.until("<|sep|>", within=_LONGEST_NAME)
        if not _NAMED.fullmatch(name):
            raise NotACall
        values: dict[str, str] = {}
        while True:
            cursor.space()
            if cursor.maybe("<|close|>call<|sep|>"):
                return WrittenCall(name, values, cursor.since(begin))
            if cursor.maybe("<|open|>json"):
                cursor.until("<|sep|>", within=_LONGEST_NAME)
                cursor.space()
                value = cursor.value()[0]
                cursor.until("<|close|>call<|sep|>")
                return call_of({"name": name, "arguments": value}, cursor.since(begin))
            cursor.take('<|open|>argument key="')
            key = cursor.until('"', within=_LONGEST_NAME)
            cursor.until("<|sep|>", within=_LONGEST_NAME)
            values[key] = cursor.until("<|close|>argument<|sep|>")
