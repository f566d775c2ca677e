"""Embeddings and reranking, as llama-server does them.

Sources: the OpenAI API reference for embeddings, Jina's and TEI's references for reranking, llama.cpp's server for what
has an effect.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from deck.api import (
    Asked,
    DeckError,
    ErrorKind,
    Facts,
    Field,
    FieldType,
    Operation,
    Report,
    Table,
    Values,
    boolean,
    integer,
    invalid,
    one_of,
    out_of_range,
    string,
    strings,
    wrong_type,
)
from deck_plugins.openai_wire import render_error

from .vocabulary import check_ids, is_ids, read_ids

# OpenAI's bounds on inputs and on the tokens of one.
_MOST_INPUTS = 2048
_MOST_DOCUMENTS = 10_000
_MOST_IDS = 1 << 20
_INPUT = f"a string, an array of token ids, or an array of up to {_MOST_INPUTS} of either"
_KEEPS_NOTHING = "Deck keeps nothing"
_TRUNCATES = "llama-server cuts no input; send shorter ones, or raise -ub in [server] args"
_FLOAT_BYTES = 4


def _input() -> FieldType:
    def check(item: Any, path: str, report: Report) -> Any:
        if isinstance(item, list) and not is_ids(item):
            if len(item) > _MOST_INPUTS:
                raise out_of_range(path, _INPUT, f"{len(item)} of them")
            if len({isinstance(each, str) for each in item}) > 1:
                raise invalid(f"{path}: texts and token ids do not mix; send two requests", path, "invalid_type")
            for position, each in enumerate(item):
                _check_input(each, f"{path}[{position}]")
        else:
            _check_input(item, path)
        if item == []:
            raise out_of_range(path, f"{_INPUT}, not empty", item)
        return item

    return FieldType("any", _INPUT, check)


def _check_input(item: Any, path: str) -> None:
    if isinstance(item, str):
        if not item:
            raise invalid(f"{path}: there is nothing in it to embed", path, "unsupported_value")
        return
    read_ids(item, path, "a string or an array of token ids")
    if not 0 < len(item) <= _MOST_IDS:
        raise out_of_range(path, f"1 to {_MOST_IDS} token ids", f"{len(item)} of them")


def _check_vector(asked: Asked, facts: Facts) -> None:
    check_ids(asked.fields["input"], "input", facts)
    wanted, given = asked.fields.get("dimensions"), facts.metadata.get("n_embd")
    if wanted is not None and isinstance(given, int) and wanted != given:
        raise _other_dimensions(wanted, given)


def _other_dimensions(wanted: int, given: int) -> DeckError:
    message = (
        f"dimensions: this model's embeddings have {given} dimensions, and none are cut; leave it out, not {wanted}"
    )
    return invalid(message, "dimensions", "unsupported_value")


def _checked(answer: Any, asked: Asked) -> Any:
    """Hold an answer against what was asked: a backend that says nothing of itself is found out here."""
    wanted = asked.fields.get("dimensions")
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list) or not data:
        raise DeckError(ErrorKind.UPSTREAM, "the backend answered no embeddings: `data` is missing")
    if wanted is not None and (given := _dimensions(data[0])) is not None and given != wanted:
        raise _other_dimensions(wanted, given)
    return answer


def _dimensions(item: Any) -> int | None:
    vector = item.get("embedding") if isinstance(item, Mapping) else None
    if isinstance(vector, list):
        return len(vector)
    try:
        return len(base64.b64decode(vector or "", validate=True)) // _FLOAT_BYTES if isinstance(vector, str) else None
    except binascii.Error:
        return None


EMBEDDINGS = Operation(
    name="embeddings",
    title="Embeddings",
    paths=("/embeddings",),
    kinds={"embedding": frozenset(), "chat": frozenset({"--embedding", "--embeddings"})},
    route="/v1/embeddings",
    tables={
        "": Table(
            "embeddings",
            (
                Field.mapped("model", string(empty=False)),
                Field.mapped("input", _input()),
                Field.mapped("encoding_format", one_of("float", "base64")),
                Field.mapped(
                    "dimensions",
                    integer(1),
                    reason="only the number that the model has: nothing is cut; any other is answered with 400",
                ),
                Field.mapped(
                    "embd_normalize",
                    integer(-1),
                    extension=True,
                    reason="-1 none, 0 greatest, 2 Euclidean, else p-norm",
                ),
                Field.annotation("user", _KEEPS_NOTHING),
                Field.refused("content", "it is llama-server's own spelling with another answer; send input"),
                Field.refused("truncate", _TRUNCATES),
                Field.refused("truncate_prompt_tokens", _TRUNCATES),
            ),
        )
    },
    render_error=render_error,
    required=("input",),
    check=_check_vector,
    render=_checked,
)


def _documents() -> FieldType:
    expected = f"an array of 1 to {_MOST_DOCUMENTS} texts, or of objects with a text"

    def check(item: Any, path: str, report: Report) -> list[str]:
        if not isinstance(item, list):
            raise wrong_type(path, expected, item)
        if not 0 < len(item) <= _MOST_DOCUMENTS:
            raise out_of_range(path, expected, f"{len(item)} of them")
        return [_document(each, f"{path}[{position}]", report) for position, each in enumerate(item)]

    return FieldType("array", expected[3:], check)


def _document(item: Any, path: str, report: Report) -> str:
    if isinstance(item, dict) and isinstance(item.get("text"), str):
        other = next((name for name in item if name != "text"), None)
        if other is not None:
            where = f"{path}.{other[:60]}"
            raise invalid(f"{where}: only the text of a document is ranked", where, "unknown_parameter")
        report.changed(path, "a document is its text for llama-server", shown=f"{path}>{path}.text", field="documents")
        return str(item["text"])
    if not isinstance(item, str):
        raise wrong_type(path, "a string", item)
    return item


def _read_rerank(values: Values, report: Report) -> Asked:
    documents, texts = values.get("documents"), values.get("texts")
    if (documents is None) == (texts is None):
        raise invalid("documents is required, or texts in its place", "documents", "missing_required_parameter")
    fields = {name: item for name, item in values.values.items() if name not in ("model", "return_documents")}
    if texts is None and "return_text" in fields:
        raise invalid("return_text goes with texts; send return_documents", "return_text", "unsupported_parameter")
    if documents is None and values.get("return_documents"):
        message = "return_documents goes with documents; send return_text"
        raise invalid(message, "return_documents", "unsupported_parameter")
    return Asked(fields=fields, reply=documents if values.get("return_documents") else None)


def _ranked(answer: Any, asked: Asked) -> Any:
    """Put the client's documents beside their ranks where it wants them: llama-server gives places alone."""
    results = answer.get("results") if isinstance(answer, dict) else None
    if results is None and not isinstance(answer, list):
        raise DeckError(ErrorKind.UPSTREAM, "the backend answered no ranks: `results` is missing")
    if asked.reply is None or not isinstance(results, list):
        return answer
    for item in results:
        place = item.get("index") if isinstance(item, dict) else None
        if isinstance(place, int) and 0 <= place < len(asked.reply):
            item["document"] = {"text": asked.reply[place]}
    return answer


RERANK = Operation(
    name="rerank",
    title="Rerank",
    paths=("/rerank", "/reranking"),
    kinds={"rerank": frozenset()},
    route="/v1/rerank",
    tables={
        "": Table(
            "rerank",
            (
                Field.mapped("model", string(empty=False)),
                Field.mapped("query", string(empty=False)),
                Field.mapped("documents", _documents()),
                Field.mapped("top_n", integer(1), reason="how many of the best are answered"),
                Field.mapped("return_documents", boolean(), reason="their texts, beside the ranks"),
                Field.mapped(
                    "texts", strings(most=_MOST_DOCUMENTS), reason="in place of documents: TEI's form, answered in it"
                ),
                Field.mapped("return_text", boolean(), reason="with texts"),
                Field.annotation("user", _KEEPS_NOTHING),
                Field.tolerated("raw_scores", (True,), "llama-server's scores are raw", hint=True),
                Field.tolerated("truncate", (False,), _TRUNCATES),
                Field.tolerated("truncation", (False,), _TRUNCATES),
                Field.refused("max_tokens_per_doc", _TRUNCATES),
                Field.refused("max_chunks_per_doc", _TRUNCATES),
                Field.refused("rank_fields", "only the text of a document is ranked"),
            ),
        )
    },
    render_error=render_error,
    required=("query",),
    read=_read_rerank,
    render=_ranked,
)
