"""The syntaxes in which models write calls, each after the chat templates and documentation of its makers."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from deck import json
from deck.kit.cursor import Cursor, NeedsMore, NotACall
from deck.kit.rescue import Found, WrittenCall

_NAMES = ("name", "function", "tool_name", "tool")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.-]+)")
_NUMBERED = re.compile(r":\d+$")


class Grammar:
    """A syntax whose `calls` reads them off a cursor.

    Args:
        openers: what begins a call; it stands in what `calls` reads.
        closers: what ends one; a text without any is not read again.
        anywhere: false where an opener is ordinary text unless it begins the answer.
    """

    def __init__(self, openers: Sequence[str], closers: Sequence[str], *, anywhere: bool = True) -> None:
        self.openers = tuple(openers)
        self.closers = tuple(closers)
        self.anywhere = anywhere

    def read(self, text: str, *, is_end: bool) -> Found | bool:
        """Return the calls that `text` begins with; True = it may become one, False = it is none."""
        cursor = Cursor(text, is_end=is_end)
        try:
            calls = self.calls(cursor)
        except NeedsMore:
            return True
        except NotACall:
            return False
        return Found(tuple(calls), cursor.at) if calls else False

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read calls.

        Raises:
            NotACall: it is something else.
            NeedsMore: it may become a call.
        """
        raise NotACall


class TaggedJson(Grammar):
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`: an object, several, or an array between two tags.

    The answer's end counts as the closing tag: models that stop at it never write it.
    """

    def __init__(self, opener: str, closer: str) -> None:
        super().__init__((opener,), (closer,) if closer else ("}", "]"))
        self._closer = closer

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read what stands between the tags."""
        cursor.take(*self.openers)
        cursor.space()
        fence = cursor.maybe("```json", "```")
        cursor.space()
        found = calls_of(cursor.value()[0])
        while self._closer:
            cursor.space()
            if fence and cursor.maybe("```"):
                cursor.space()
            if cursor.maybe(self._closer) or (cursor.is_done and cursor.is_end):
                break
            if cursor.is_done:
                raise NeedsMore
            if cursor.maybe(*self.openers, ",", ";"):
                cursor.space()
            found += calls_of(cursor.value()[0])
        return found


class BareJson(Grammar):
    """An answer that is nothing but `{"name": …, "parameters": {…}}`, or an array of such, possibly in a code fence."""

    def __init__(self) -> None:
        super().__init__(("{", "[{", "[ {", "[\n", "```json", "```tool_call"), ("}", "]"), anywhere=False)

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read the object; whatever stands after it makes it ordinary JSON."""
        fence = cursor.maybe("```json", "```tool_call")
        cursor.space()
        found = calls_of(cursor.value()[0])
        cursor.space()
        while cursor.maybe(";", ","):
            cursor.space()
            found += calls_of(cursor.value()[0])
            cursor.space()
        if fence:
            cursor.take("```")
            cursor.space()
        if not cursor.is_done:
            raise NotACall
        if not cursor.is_end:
            raise NeedsMore
        return found


class PrefixedJson(Grammar):
    """A name and the JSON of its arguments, with marks around each, possibly several within marks around them all.

    Args:
        begin: before the first call, may be left out.
        call: before each name.
        between: after the name, before the arguments; the first that stands there counts.
        done: after the arguments, may be left out at the end.
        end: after the last call, may be left out at the end.
    """

    def __init__(
        self, *, call: Sequence[str], between: Sequence[str], done: Sequence[str], begin: str = "", end: str = ""
    ) -> None:
        super().__init__([*([begin] if begin else []), *call], [*done, *([end] if end else []), "}"])
        self._begin, self._call, self._between, self._done, self._end = begin, call, between, done, end

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read one call after another."""
        is_framed = bool(self._begin and cursor.maybe(self._begin))
        cursor.space()
        found: list[WrittenCall] = []
        while True:
            cursor.take(*self._call)
            cursor.space()
            name = bare_name(cursor.until(*self._between))
            cursor.space()
            if not re.fullmatch(r"[\w.-]{1,128}", name):
                raise NotACall
            cursor.maybe("```json")
            cursor.space()
            found.append(call_of({"name": name, "arguments": cursor.value()[0]}))
            cursor.space()
            cursor.maybe("```")
            cursor.space()
            closed = cursor.maybe(*self._done) if self._done else ""
            if closed:
                cursor.space()
            if self._end and cursor.maybe(self._end):
                return found
            if cursor.is_done:
                if is_framed and not cursor.is_end:
                    raise NeedsMore
                return found
            if not any(cursor.text.startswith(mark, cursor.at) for mark in self._call):
                self._check_cut(cursor)
                return found

    def _check_cut(self, cursor: Cursor) -> None:
        rest = cursor.text[cursor.at :]
        if not cursor.is_end and any(mark.startswith(rest) for mark in self._call):
            raise NeedsMore


class TaggedFunction(Grammar):
    """`<function=name><parameter=key>value</parameter></function>`, alone or within `<tool_call>`.

    A JSON object in place of the parameters is read too: `<function=name>{…}</function>`.
    """

    def __init__(self) -> None:
        super().__init__(("<function=", "<tool_call>"), ("</function>", "</tool_call>"))

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read one function after another."""
        is_tagged = bool(cursor.maybe("<tool_call>"))
        found: list[WrittenCall] = []
        while True:
            cursor.space()
            cursor.take("<function=")
            name = bare_name(cursor.until(">"))
            cursor.space()
            if cursor.maybe("{"):
                cursor.at -= 1
                found.append(call_of({"name": name, "arguments": cursor.value()[0]}))
                cursor.space()
                self._close(cursor, "</function>")
            else:
                found.append(WrittenCall(name, self._parameters(cursor)))
            if not is_tagged:
                return found
            cursor.space()
            if cursor.maybe("</tool_call>") or (cursor.is_done and cursor.is_end):
                return found
            if not cursor.is_done and not cursor.text.startswith("<function=", cursor.at):
                return found

    def _parameters(self, cursor: Cursor) -> dict[str, str]:
        values: dict[str, str] = {}
        while True:
            cursor.space()
            if cursor.maybe("</function>"):
                return values
            if cursor.is_done or cursor.text.startswith("</tool_call>", cursor.at):
                if not cursor.is_end and cursor.is_done:
                    raise NeedsMore
                return values
            cursor.take("<parameter=")
            key = cursor.until(">").strip()
            values[key] = _unframed(cursor.until("</parameter>"))

    @staticmethod
    def _close(cursor: Cursor, mark: str) -> None:
        if not cursor.maybe(mark) and not (cursor.is_done and cursor.is_end):
            raise NotACall


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
            if cursor.maybe("</tool_call>") or (cursor.is_done and cursor.is_end and values):
                return [WrittenCall(name, values)]
            cursor.take("<arg_key>")
            key = cursor.until("</arg_key>").strip()
            cursor.space()
            cursor.take("<arg_value>")
            values[key] = _unframed(cursor.until("</arg_value>"))


class Invokes(Grammar):
    """`<invoke name="f"><parameter name="k">v</parameter></invoke>` within an outer tag.

    Args:
        begin: the outer opening tag.
        end: the outer closing tag.
        prefix: what stands between `<` or `</` and each inner tag's name.
    """

    def __init__(self, begin: str, end: str, prefix: str = "") -> None:
        super().__init__((begin,), (end, f"</{prefix}invoke>"))
        self._begin, self._end, self._prefix = begin, end, prefix

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read one invocation after another."""
        prefix = self._prefix
        cursor.take(self._begin)
        found: list[WrittenCall] = []
        while True:
            cursor.space()
            if found and (cursor.maybe(self._end) or (cursor.is_done and cursor.is_end)):
                return found
            cursor.take(f'<{prefix}invoke name="')
            name = bare_name(cursor.until('"'))
            cursor.until(">")
            values: dict[str, Any] = {}
            while True:
                cursor.space()
                if cursor.maybe(f"</{prefix}invoke>"):
                    break
                cursor.take(f'<{prefix}parameter name="')
                key = cursor.until('"')
                marks = cursor.until(">")
                text = cursor.until(f"</{prefix}parameter>")
                values[key] = text if 'string="true"' in marks or not prefix else _unframed(text)
            found.append(WrittenCall(name, values))


class HarmonyCalls(Grammar):
    """`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>`; the recipient may come first."""

    def __init__(self) -> None:
        starts = ("<|start|>assistant", "<|channel|>commentary", "<|channel|>analysis")
        super().__init__(starts, ("<|call|>", "<|end|>", "}"))

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read the header, then the arguments."""
        header = cursor.until("<|message|>")
        found = _RECIPIENT.search(header)
        if found is None or "<|end|>" in header:
            raise NotACall
        cursor.space()
        call = call_of({"name": found[1], "arguments": cursor.value()[0]})
        cursor.maybe("<|call|>", "<|end|>")
        return [call]


class PythonCalls(Grammar):
    """`[f(key="value", n=1), g()]` between two marks; values are Python literals.

    Without a closing mark it goes on to the end of the answer, and the list's own bracket may be the opener.
    """

    def __init__(self, opener: str, closer: str) -> None:
        super().__init__((opener,), (closer,) if closer else (")", "]"), anywhere=opener != "[")
        self._closer = closer

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read the expression."""
        if self.anywhere:
            cursor.take(*self.openers)
        if self._closer and cursor.text.find(self._closer, cursor.at) >= 0:
            text = cursor.until(self._closer)
        elif cursor.is_end:
            text, cursor.at = cursor.text[cursor.at :], len(cursor.text)
        else:
            raise NeedsMore
        return _python_calls(text)


class BracketedCalls(Grammar):
    """`[TOOL_CALLS]` before an array of calls, or before each name, with its arguments after `[ARGS]` or at once."""

    def __init__(self) -> None:
        super().__init__(("[TOOL_CALLS]",), ("}", "]"))

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read the array, or one call after another."""
        found: list[WrittenCall] = []
        while True:
            cursor.take(*self.openers)
            cursor.space()
            if cursor.text.startswith("[", cursor.at):
                found += calls_of(cursor.value()[0])
            else:
                name = cursor.name()
                if cursor.maybe("[CALL_ID]"):
                    cursor.name()
                cursor.maybe("[ARGS]")
                cursor.space()
                found.append(call_of({"name": name, "arguments": cursor.value()[0]}))
            here = cursor.at
            cursor.space()
            if not cursor.text.startswith("[TOOL_CALLS]", cursor.at):
                cursor.at = here
                return found


class FunctionCallMarks(Grammar):
    """`<start_function_call>call:name{key:<escape>text<escape>,n:1}<end_function_call>`."""

    def __init__(self, begin: str, end: str, quote: str) -> None:
        super().__init__((begin,), (end,))
        self._begin, self._end, self._quote = begin, end, quote

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read the call."""
        cursor.take(self._begin)
        cursor.take("call:")
        name = bare_name(cursor.until("{"))
        try:
            text = cursor.until(self._end)
        except NotACall:
            text, cursor.at = cursor.text[cursor.at :], len(cursor.text)
        body = text.strip()
        if not body.endswith("}"):
            raise NotACall
        return [call_of({"name": name, "arguments": _marked_object("{" + body, self._quote)})]


def call_of(value: Any) -> WrittenCall:
    """Return the call that a decoded `{"name": …, "arguments": {…}}` is, in the spellings that models use.

    Raises:
        NotACall: it is something else.
    """
    if not isinstance(value, dict):
        raise NotACall
    inner = value.get("function")
    if isinstance(inner, dict):
        value = inner
    name = next((value[key] for key in _NAMES if isinstance(value.get(key), str)), None)
    if name is None:
        raise NotACall
    arguments: Any = next((value[key] for key in _ARGUMENTS if key in value), {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            raise NotACall from None
    if not isinstance(arguments, dict | None):
        raise NotACall
    return WrittenCall(bare_name(name), json.dumps(arguments or {}).decode())


def calls_of(value: Any) -> list[WrittenCall]:
    """Return the calls of one decoded object or of an array of them."""
    return [call_of(item) for item in value] if isinstance(value, list) else [call_of(value)]


def bare_name(name: str) -> str:
    """Return a function's name without the namespace that some models put before it and the number behind it."""
    return _NUMBERED.sub("", name.strip().removeprefix("functions.").removeprefix("tools."))


def _unframed(text: str) -> str:
    """Return a value without the one line break that the syntax puts on either side."""
    return text.removeprefix("\n").removesuffix("\n")


def _python_calls(text: str) -> list[WrittenCall]:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise NotACall from None
    items = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
    found = []
    for item in items:
        if not isinstance(item, ast.Call) or item.args:
            raise NotACall
        try:
            name = ast.unparse(item.func)
            arguments = {str(each.arg): ast.literal_eval(each.value) for each in item.keywords if each.arg}
            found.append(WrittenCall(bare_name(name), json.dumps(arguments).decode()))
        except (ValueError, TypeError, RecursionError):
            raise NotACall from None
    return found


def _marked_object(text: str, quote: str) -> Any:
    """Decode an object whose texts stand between `quote` marks and whose keys stand bare."""
    pieces = text.split(quote)
    if len(pieces) % 2 == 0:
        raise NotACall
    strict = [
        json.dumps(piece).decode() if place % 2 else re.sub(r"([{,]\s*)([A-Za-z_][\w.-]*)\s*:", r'\1"\2":', piece)
        for place, piece in enumerate(pieces)
    ]
    try:
        return json.loads("".join(strict))
    except ValueError:
        raise NotACall from None
