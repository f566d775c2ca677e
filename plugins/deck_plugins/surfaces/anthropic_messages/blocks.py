"""Read one content block of Messages into canonical parts; the order of turns is not its concern."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deck.api import (
    Image,
    Reader,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Treatment,
    Values,
    image_of_url,
    invalid,
    json,
    tool_id_of_client,
    wrong_type,
)

from .fields import BLOCKS, CHANGED_TOOL, KINDS, SOURCE
from .signature import unseal

# What a result says before its content when the client calls it an error; templates have no member for that.
ERROR_LINE = "[this tool call failed]"


@dataclass(frozen=True, slots=True)
class Change:
    """From `path` on, the tool `name` is offered or no longer offered."""

    name: str
    is_offered: bool
    path: str


def kind_of(item: Any, path: str, accepted: tuple[str, ...], where: str) -> str:
    """Return the type of a block, one of `accepted`; `where` says what it stands in.

    Raises:
        DeckError: it is no block, or not one that may stand there.
    """
    if not isinstance(item, dict):
        raise wrong_type(path, "an object with a type", item)
    kind = item.get("type")
    if not isinstance(kind, str):
        raise wrong_type(f"{path}.type", "a string", kind)
    row = KINDS.find(kind)
    if row is not None and row.treatment is Treatment.REFUSED:
        raise invalid(f"{path}: {kind}: {row.reason}", path, "unsupported_value")
    if kind not in accepted:
        known = ", ".join(accepted)
        raise invalid(f"{path}.type: {kind[:100]!r} cannot stand in {where}; known: {known}", f"{path}.type")
    return kind


def read_text(reader: Reader, item: dict[str, Any], path: str) -> Text | None:
    """Return the text of a block, None = it is empty."""
    text = _required(reader.read(BLOCKS["text"], item, path), "text", path)
    return Text(text) if text else None


def read_change(reader: Reader, item: dict[str, Any], path: str) -> Change:
    """Return what a directive in mid-conversation makes of a tool."""
    where = f"{path}.tool"
    tool = reader.read(CHANGED_TOOL, _required(reader.read(BLOCKS[item["type"]], item, path), "tool", path), where)
    _required(tool, "type", where)
    return Change(_required(tool, "name", where), item["type"] == "tool_addition", path)


def read_texts(reader: Reader, content: Any, path: str, where: str) -> list[tuple[str, str]]:
    """Return the path and the text of a string or of each text block, empty ones left out."""
    if isinstance(content, str):
        return [(path, content)] if content else []
    if not isinstance(content, list):
        raise wrong_type(path, "a string or an array of text blocks", content)
    texts = []
    for place, item in enumerate(content):
        inner = f"{path}[{place}]"
        kind_of(item, inner, ("text",), where)
        if (part := read_text(reader, item, inner)) is not None:
            texts.append((inner, part.text))
    return texts


def read_image(reader: Reader, item: dict[str, Any], path: str, *, remote: bool) -> Image:
    """Return an image; `remote` says whether http(s) is allowed."""
    block = reader.read(BLOCKS["image"], item, path)
    where = f"{path}.source"
    source = reader.read(SOURCE, _required(block, "source", path), where)
    kind = _required(source, "type", where)
    for member in ("media_type", "data") if kind == "url" else ("url",):
        if member in source:
            at = f"{where}.{member}"
            raise invalid(f"{at}: a source of type {kind} has none; send one picture", at, "unsupported_parameter")
    if kind == "url":
        return image_of_url(_required(source, "url", where), f"{where}.url", remote=remote)
    media, data = _required(source, "media_type", where), _required(source, "data", where)
    return image_of_url(f"data:{media};base64,{data}", f"{where}.data", remote=False)


def read_thinking(reader: Reader, item: dict[str, Any], path: str) -> Reasoning | None:
    """Return a thought, which one that was not shown carries in its signature; None = it is empty."""
    block = reader.read(BLOCKS["thinking"], item, path)
    shown, signed = block.get("thinking", ""), block.get("signature", "")
    thought = shown or unseal(signed)
    if signed and (shown or not thought):
        reader.report.ignored(f"{path}.signature", "it carries no meaning here")
    return Reasoning(thought) if thought else None


def read_call(reader: Reader, item: dict[str, Any], path: str) -> ToolCall:
    """Return a call; an absent input is an empty one."""
    block = reader.read(BLOCKS["tool_use"], item, path)
    name, sent = _required(block, "name", path), _required(block, "id", path)
    return ToolCall(tool_id_of_client(sent), name, json.dumps(block.get("input", {})).decode())


def read_result(reader: Reader, item: dict[str, Any], path: str, *, remote: bool) -> ToolResult:
    """Return the result of a call; an absent content is an empty one."""
    block = reader.read(BLOCKS["tool_result"], item, path)
    call = tool_id_of_client(_required(block, "tool_use_id", path))
    parts = _result_parts(reader, block.get("content", ""), f"{path}.content", remote)
    is_error = block.get("is_error", False)
    if is_error:
        where = f"{path}.is_error"
        reader.report.changed(
            where, "templates know no errors; said in a first line of the result", shown=f"{where}>{path}.content"
        )
        parts.insert(0, Text(ERROR_LINE))
    return ToolResult(call, tuple(parts), is_error)


def _result_parts(reader: Reader, content: Any, path: str, remote: bool) -> list[Text | Image]:
    if isinstance(content, str):
        return [Text(content)] if content else []
    if not isinstance(content, list):
        raise wrong_type(path, "a string or an array of blocks", content)
    parts: list[Text | Image] = []
    for place, item in enumerate(content):
        where = f"{path}[{place}]"
        match kind_of(item, where, ("text", "image", "tool_reference"), "a tool result"):
            case "text":
                if (text := read_text(reader, item, where)) is not None:
                    parts.append(text)
            case "image":
                parts.append(read_image(reader, item, where, remote=remote))
            case _:
                parts.append(_reference(reader, item, where))
    return parts


def _reference(reader: Reader, item: dict[str, Any], path: str) -> Text:
    name = _required(reader.read(BLOCKS["tool_reference"], item, path), "tool_name", path)
    reader.report.changed(path, "all tools are offered at once; the reference is written as text", shown=f"{path}>text")
    return Text(f"[tool: {name}]")


def _required(block: Values, name: str, path: str) -> Any:
    if name not in block:
        raise invalid(f"{path}.{name} is required", f"{path}.{name}", "missing_required_parameter")
    return block.get(name)
