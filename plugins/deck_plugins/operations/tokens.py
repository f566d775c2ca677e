"""llama-server's own routes about tokens and templates; nothing is generated.

Source: llama.cpp, tools/server/README.md and server-context.cpp.
"""

from __future__ import annotations

from typing import Any

from deck.api import (
    Asked,
    Facts,
    Field,
    FieldType,
    Operation,
    Report,
    Table,
    boolean,
    string,
    wrong_type,
)
from deck_plugins.openai_wire import render_error

from .vocabulary import check_ids, read_ids

_CHAT = {"chat": frozenset[str](), "embedding": frozenset[str](), "rerank": frozenset[str]()}
_CONTENT = "a string, or an array of texts and token ids"


def _content() -> FieldType:
    def check(item: Any, path: str, report: Report) -> Any:
        if isinstance(item, str):
            return item
        if not isinstance(item, list):
            raise wrong_type(path, _CONTENT, item)
        for position, each in enumerate(item):
            if not isinstance(each, str) and type(each) is not int:
                raise wrong_type(f"{path}[{position}]", "a string or a token id", each)
        return item

    return FieldType("any", _CONTENT, check)


def _ids() -> FieldType:
    def check(item: Any, path: str, report: Report) -> Any:
        read_ids(item, path, "an array of token ids")
        return item

    return FieldType("array", "array of token ids", check)


def _check_content(asked: Asked, facts: Facts) -> None:
    check_ids(asked.fields["content"], "content", facts)


def _check_tokens(asked: Asked, facts: Facts) -> None:
    check_ids(asked.fields["tokens"], "tokens", facts)


_MODEL = Field.mapped("model", string(empty=False))

TOKENIZE = Operation(
    name="tokenize",
    title="Tokenize",
    paths=("/tokenize",),
    kinds=_CHAT,
    route="/tokenize",
    tables={
        "": Table(
            "tokenize",
            (
                _MODEL,
                Field.mapped("content", _content()),
                Field.mapped("add_special", boolean(), reason="what begins a prompt, as a BOS token; off by default"),
                Field.mapped(
                    "parse_special", boolean(), reason="texts such as <|im_end|> are their token; on by default"
                ),
                Field.mapped("with_pieces", boolean(), reason="each token with its text"),
            ),
        )
    },
    render_error=render_error,
    is_llamas=True,
    required=("content",),
    check=_check_content,
)

DETOKENIZE = Operation(
    name="detokenize",
    title="Detokenize",
    paths=("/detokenize",),
    kinds=_CHAT,
    route="/detokenize",
    tables={"": Table("detokenize", (_MODEL, Field.mapped("tokens", _ids())))},
    render_error=render_error,
    is_llamas=True,
    required=("tokens",),
    check=_check_tokens,
)

APPLY_TEMPLATE = Operation(
    name="apply-template",
    title="Apply template",
    paths=("/apply-template",),
    kinds={"chat": frozenset()},
    route="/apply-template",
    tables={},
    render_error=render_error,
    is_llamas=True,
    surface="chat",
)
