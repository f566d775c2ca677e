"""Operations: what a model does that is no chat. Each is one value: its routes, its fields, who serves it, its answer.

Knows fields and forms of bodies. Does not know how a request is forwarded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from deck.canon.request import TextRequest
from deck.canon.value import value
from deck.contracts import Facts
from deck.errors import DeckError, invalid
from deck.normalize.fields import Reader, Table, Values
from deck.normalize.report import Report
from deck.normalize.types import FieldType, wrong_type

Answers = Literal["json", "events", "bytes"]


@value(frozen=True, slots=True, kw_only=True)
class Upload:
    """A file that a client sends in a form; `size` in bytes."""

    filename: str
    size: int


@value(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a client asked of an operation.

    Args:
        fields: what goes to the backend, without the model.
        stream: the answer is wanted as events.
        text: for an operation that generates: the sampling and the like, to which the profile is applied.
        reply: whatever the operation needs to make its answer.
    """

    fields: Mapping[str, Any]
    stream: bool = False
    text: TextRequest | None = None
    reply: Any = None


def _as_it_is(values: Values, report: Report) -> Asked:
    fields = {name: item for name, item in values.values.items() if name != "model"}
    return Asked(fields=fields, stream=fields.get("stream") is True)


def _no_fault(asked: Asked, facts: Facts) -> None:
    return None


def _unchanged(answer: Any, asked: Asked) -> Any:
    return answer


def _never(event: Mapping[str, Any]) -> bool:
    return False


@value(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing that a model does beside chatting.

    Args:
        name: in metrics and logs.
        title: for people.
        paths: its routes, without `/v1`; all mean the same.
        kinds: the kinds of model that serve it, each with the flags of which one must be among its llama-server's
            `args`; none = any server of the kind does.
        route: the backend's path.
        tables: the field tables by the path they apply to; "" is the top level.
        render_error: makes the error envelope.
        required: fields that must be there beside the model.
        form: how the body is written.
        answers: what the backend may answer: a JSON object, server-sent events, any bytes.
        read: makes what is asked of the fields that the tables let through.
        check: refuses what the running server is known not to do.
        render: makes the client's answer of the backend's JSON.
        is_last: tells the event that ends a stream; a stream that ends without one was cut. `[DONE]` always ends it.
        surface: reads the body instead of `tables` and `read`: the operation is about such a request.
        is_llamas: only a llama-server does it, no other server of the kind.
        unread: fields that llama-server does not read though the wire has them, and why they mean nothing there.
    """

    name: str
    title: str
    paths: Sequence[str]
    kinds: Mapping[str, frozenset[str]]
    route: str
    tables: Mapping[str, Table]
    render_error: Callable[[DeckError], dict[str, Any]]
    required: Sequence[str] = ()
    form: Literal["json", "multipart"] = "json"
    answers: frozenset[Answers] = frozenset({"json"})
    read: Callable[[Values, Report], Asked] = _as_it_is
    check: Callable[[Asked, Facts], None] = _no_fault
    render: Callable[[Any, Asked], Any] = _unchanged
    is_last: Callable[[Mapping[str, Any]], bool] = _never
    surface: str | None = None
    is_llamas: bool = False
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def header_names(self) -> Sequence[str]:
        """No request header is read."""
        return ()

    @property
    def id_headers(self) -> Sequence[str]:
        """The answer's headers that carry the request's id."""
        return ("x-request-id",)

    def error(self, error: DeckError, request_id: str) -> dict[str, Any]:
        """Make the error envelope."""
        return self.render_error(error)

    def parse(
        self, body: Mapping[str, Any], report: Report, *, lenient: bool, passed: frozenset[str] = frozenset()
    ) -> Asked:
        """Read a body's fields; those in `passed` that no table names go to the backend unread.

        Raises:
            DeckError: a field is unknown, refused, missing, or of a wrong type.
        """
        table = self.tables[""]
        unread = {name: item for name, item in body.items() if name in passed and table.find(name) is None}
        known = {name: item for name, item in body.items() if name not in unread}
        reader = Reader(report, lenient=lenient)
        values = reader.read_with_extra(table, known, protected=frozenset({"model", *self.required}))
        for name in ("model", *self.required):
            if name not in values:
                raise invalid(f"{name} is required", name, "missing_required_parameter")
        asked = self.read(values, report)
        if not unread:
            return asked
        return Asked(fields={**asked.fields, **unread}, stream=asked.stream, text=asked.text, reply=asked.reply)


def upload(*, several: bool = False) -> FieldType:
    """A file of a form; `several` also takes more than one under the same name."""
    expected = "one or more files" if several else "a file"

    def check(item: Any, path: str, report: Report) -> Any:
        items = item if several and isinstance(item, list) else [item]
        if not items or not all(isinstance(each, Upload) for each in items):
            raise wrong_type(path, expected, item)
        return item

    return FieldType("array" if several else "file", expected, check)
