"""Syntaxes whose arguments are JSON, or Python, each after the chat templates and documentation of its makers."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from typing import Any

from deck import json
from deck.kit.cursor import Cursor, NeedsMore, NotACall
from deck.kit.syntax import Grammar, WrittenCall, bare_name, call_of, calls_of, encoded

_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.-]+)")
_LONGEST_HEADER = 256
_NAMED = re.compile(r"[\w.:/-]{1,128}")
_FIRST_KEYS = ("name", "function", "type", "tool", "tool_name", "tool_call", "arguments", "parameters", "args", "id")


class TaggedJson(Grammar):
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`: an object, several, or an array between two tags.

    The answer's end counts as the closing tag: models that stop at it never write it. Without a closing tag, `;`
    stands between objects.
    """

    def __init__(self, opener: str, closer: str) -> None:
        super().__init__((opener,), (closer,) if closer else ("}", "]"))
        self._closer = closer

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read what stands between the tags."""
        cursor.take(*self.openers)
        cursor.space()
        fence = cursor.maybe("```json", "```")
        found = self._object(cursor)
        while self._goes_on(cursor, fence):
            found += self._object(cursor)
        return found

    @staticmethod
    def _object(cursor: Cursor) -> list[WrittenCall]:
        cursor.space()
        value, raw = cursor.value()
        return calls_of(value, raw)

    def _goes_on(self, cursor: Cursor, fence: str) -> bool:
        """Pass over what stands behind an object; true = another follows."""
        here = cursor.at
        cursor.space()
        if fence and cursor.maybe("```"):
            here = cursor.at
            cursor.space()
        if not self._closer:
            if cursor.maybe(";"):
                return True
            cursor.at = here
            return False
        if cursor.maybe(self._closer):
            return False
        if cursor.is_done:
            return False  # it is the end, or more would have been asked for
        cursor.maybe(*self.openers, ",", ";")
        return True


class BareJson(Grammar):
    """An answer that is nothing but `{"name": …, "parameters": {…}}`, or an array of such, possibly in a code fence."""

    def __init__(self) -> None:
        super().__init__(("{", "[{", "[ {", "[\n", "```json", "```tool_call"), ("}", "]"), anywhere=False)

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read the object; whatever stands after it makes it ordinary JSON."""
        fence = cursor.maybe("```json", "```tool_call")
        cursor.space()
        self._check_key(cursor)
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

    @staticmethod
    def _check_key(cursor: Cursor) -> None:
        """Let ordinary JSON go as soon as its first key is known."""
        here = cursor.at
        if cursor.maybe("["):
            cursor.space()
        cursor.take("{")
        cursor.space()
        cursor.take('"')
        if cursor.until('"', within=_LONGEST_HEADER) not in _FIRST_KEYS:
            raise NotACall
        cursor.at = here


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
        """Read all calls within the marks, else one."""
        is_framed = bool(self._begin and cursor.maybe(self._begin))
        found: list[WrittenCall] = []
        while True:
            cursor.space()
            found.append(self._one(cursor))
            here = cursor.at
            cursor.space()
            if self._end and cursor.maybe(self._end):
                return found
            if (
                not is_framed
                or cursor.is_done
                or not any(cursor.text.startswith(mark, cursor.at) for mark in self._call)
            ):
                if is_framed and not cursor.is_end and self._is_cut(cursor):
                    raise NeedsMore
                cursor.at = here
                return found

    def _one(self, cursor: Cursor) -> WrittenCall:
        begin = cursor.at
        cursor.take(*self._call)
        cursor.space()
        name = bare_name(cursor.until(*self._between, within=_LONGEST_HEADER))
        cursor.space()
        if not _NAMED.fullmatch(name):
            raise NotACall
        cursor.maybe("```json")
        cursor.space()
        arguments = cursor.value()[0]
        here = cursor.at
        cursor.space()
        if cursor.maybe("```"):
            here = cursor.at
            cursor.space()
        if not (self._done and cursor.maybe(*self._done)):
            cursor.at = here
        return call_of({"name": name, "arguments": arguments}, cursor.since(begin))

    def _is_cut(self, cursor: Cursor) -> bool:
        rest = cursor.text[cursor.at :]
        return any(mark.startswith(rest) for mark in self._call)


class HarmonyCalls(Grammar):
    """`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>`; the recipient may come first."""

    def __init__(self) -> None:
        starts = ("<|start|>assistant", "<|channel|>commentary", "<|channel|>analysis")
        super().__init__(starts, ("<|call|>", "<|end|>", "}"))

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read the header, then the arguments."""
        end = cursor.text.find("<|message|>", 0, _LONGEST_HEADER)
        if end < 0:
            raise NotACall if len(cursor.text) >= _LONGEST_HEADER else cursor.short()
        header = cursor.until("<|message|>")
        found = _RECIPIENT.search(header)
        if found is None or "<|end|>" in header:
            raise NotACall
        cursor.space()
        value, raw = cursor.value()
        cursor.maybe("<|call|>", "<|end|>")
        return [call_of({"name": found[1], "arguments": value}, raw)]


class HeadedJson(Grammar):
    """A mark, then `{"name": …, "args": {…}}`, then another mark; the name may stand before the first as well.

    Args:
        heads: what begins a block of any kind, may be left out.
        mark: what says that the block is a call.
        ends: after the object, may be left out at the end.
    """

    def __init__(self, heads: Sequence[str], mark: str, ends: Sequence[str]) -> None:
        super().__init__((*heads, mark), (*ends, "}"))
        self._heads, self._mark, self._ends = tuple(heads), mark, tuple(ends)

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read the block."""
        name = ""
        if cursor.maybe(*self._heads):
            end = cursor.text.find(self._mark, cursor.at, cursor.at + _LONGEST_HEADER)
            if end < 0:
                raise NotACall if len(cursor.text) - cursor.at >= _LONGEST_HEADER else cursor.short()
            name = bare_name(cursor.until(self._mark))
            if name and not _NAMED.fullmatch(name):
                raise NotACall
        else:
            cursor.take(self._mark)
        cursor.space()
        value, raw = cursor.value()
        cursor.space()
        cursor.maybe(*self._ends)
        if name and isinstance(value, dict) and not isinstance(value.get("name"), str):
            value = {"name": name, "arguments": value}
        return [call_of(value, raw)]


class BracketedCalls(Grammar):
    """`[TOOL_CALLS]` before an array of calls, or before each name, with its arguments after `[ARGS]` or at once."""

    def __init__(self) -> None:
        super().__init__(("[TOOL_CALLS]",), ("}", "]"))

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read the array, or one call."""
        cursor.take(*self.openers)
        cursor.space()
        if cursor.is_done:
            raise cursor.short()
        if cursor.text.startswith("[", cursor.at):
            value, raw = cursor.value()
            return calls_of(value, raw)
        name = cursor.name()
        cursor.space()
        if cursor.maybe("[CALL_ID]"):
            cursor.name()
        cursor.maybe("[ARGS]")
        cursor.space()
        value, raw = cursor.value()
        return [call_of({"name": name, "arguments": value}, raw)]


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
            self._check_start(cursor)
        else:
            here = cursor.at
            cursor.take("[")
            self._check_start(cursor)
            cursor.at = here
        if self._closer:
            return _python_calls(cursor.rest(self._closer))
        if not cursor.is_end:
            raise NeedsMore
        text, cursor.at = cursor.text[cursor.at :], len(cursor.text)
        return _python_calls(text)

    @staticmethod
    def _check_start(cursor: Cursor) -> None:
        """Let a text go that does not begin as a call does, so that it is not held back."""
        here = cursor.at
        cursor.space()
        if cursor.maybe("["):
            cursor.space()
        if cursor.is_done:
            raise cursor.short()
        found = _PYTHON_START.match(cursor.text, cursor.at)
        if found is None or (found.end() < len(cursor.text) and found[0][-1] != "("):
            raise NotACall
        cursor.at = here


_PYTHON_START = re.compile(r"[A-Za-z_][\w.]*\s*\(?")


class CallMarks(Grammar):
    """`<start_function_call>call:name{key:<escape>text<escape>,n:1}<end_function_call>`.

    Args:
        begin: before the call.
        end: after it.
        quote: on either side of a text.
    """

    def __init__(self, begin: str, end: str, quote: str) -> None:
        super().__init__((begin,), (end,))
        self._begin, self._end, self._quote = begin, end, quote

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read the call."""
        cursor.take(self._begin)
        cursor.take("call:")
        name = bare_name(cursor.until("{", within=_LONGEST_HEADER))
        if not _NAMED.fullmatch(name):
            raise NotACall
        body = cursor.rest(self._end).strip()
        if not body.endswith("}"):
            raise NotACall
        value = _marked_object("{" + body, self._quote)
        return [call_of({"name": name, "arguments": value}, cursor.since(0))]


_BARE_KEY = re.compile(r"([{,]\s*)([A-Za-z_][\w.-]*)\s*:")


def _marked_object(text: str, quote: str) -> Any:
    """Decode an object whose texts stand between `quote` marks and whose keys stand bare."""
    pieces = text.split(quote)
    if len(pieces) % 2 == 0:
        raise NotACall
    strict = [
        json.dumps(piece).decode() if place % 2 else _BARE_KEY.sub(r'\1"\2":', piece)
        for place, piece in enumerate(pieces)
    ]
    try:
        return json.loads_exact("".join(strict))
    except (ValueError, RecursionError):
        raise NotACall from None


def _python_calls(text: str) -> list[WrittenCall]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise NotACall from None
    items = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
    return [_python_call(item) for item in items]


def _python_call(item: ast.expr) -> WrittenCall:
    if not isinstance(item, ast.Call) or item.args or any(each.arg is None for each in item.keywords):
        raise NotACall
    try:
        name = ast.unparse(item.func).removesuffix(".call")
        arguments = {str(each.arg): ast.literal_eval(each.value) for each in item.keywords if each.arg}
        return WrittenCall(bare_name(name), encoded(arguments), ast.unparse(item))
    except (ValueError, TypeError, RecursionError):
        raise NotACall from None
