"""Read the tools of Messages and the choice among them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deck.api import Reader, Tool, ToolChoice, Treatment, Values, invalid, out_of_range, wrong_type

from .blocks import Change
from .fields import HOSTED, TOOL, TOOL_CHOICE

_STRICT = "llama-server constrains the call by a grammar; strictness beyond it is not promised"
_MODES = {"auto": "auto", "any": "required", "none": "none"}


def read_tools(
    reader: Reader, fields: Values, changes: Iterable[Change]
) -> tuple[tuple[Tool, ...], ToolChoice | None, bool | None]:
    """Return the tools to offer, the choice, and False where only one call at a time is wanted.

    Raises:
        DeckError: a tool or the choice cannot be honoured.
    """
    where = fields.path("tools")
    found = (_tool(reader, item, f"{where}[{place}]") for place, item in enumerate(fields.get("tools") or []))
    tools = tuple(tool for tool in found if tool is not None)
    names = [tool.name for tool in tools]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled:
        raise invalid(f"{where}: {doubled!r} is defined twice", where)
    withdrawn = _withdrawn(reader, names, changes)
    tools = tuple(tool for tool in tools if tool.name not in withdrawn)
    names = [tool.name for tool in tools]
    if "tool_choice" not in fields:
        return tools, None, None
    choice, parallel = _choice(reader, fields.get("tool_choice"), fields.path("tool_choice"), names)
    if not tools:
        reader.report.ignored(fields.path("tool_choice"), "no tools are offered")
        return (), None, None
    return tools, choice, parallel


def _withdrawn(reader: Reader, names: list[str], changes: Iterable[Change]) -> set[str]:
    """Return the tools that the conversation has withdrawn by its end."""
    withdrawn: set[str] = set()
    for change in changes:
        if change.name not in names:
            reader.report.ignored(change.path, "no tool of that name is offered")
        elif change.is_offered:
            withdrawn.discard(change.name)
            reader.report.ignored(change.path, "the tools are offered from the beginning")
        else:
            withdrawn.add(change.name)
            reader.report.changed(change.path, "the tool is not offered at all", shown=f"{change.path}>tools")
    return withdrawn


def _tool(reader: Reader, item: Any, path: str) -> Tool | None:
    if not isinstance(item, dict):
        raise wrong_type(path, "an object", item)
    kind = item.get("type") or "custom"
    if not isinstance(kind, str):
        raise wrong_type(f"{path}.type", "a string", kind)
    row = HOSTED.find(kind)
    if row is None:
        raise out_of_range(f"{path}.type", "custom, or a tool of the vendor's", kind)
    if row.treatment is Treatment.ANNOTATION:
        reader.report.ignored(path, f"{kind[:100]}: {row.reason}", field="tools[]")
        return None
    tool = reader.read(TOOL, item, path)
    for name in ("name", "input_schema"):
        if name not in tool:
            raise invalid(f"{path}.{name} is required", f"{path}.{name}", "missing_required_parameter")
    if tool.get("strict"):
        reader.report.ignored(f"{path}.strict", _STRICT)
    if "allowed_callers" in tool:
        _check_callers(reader, tool.get("allowed_callers"), f"{path}.allowed_callers")
    return Tool(tool.get("name"), tool.get("description"), tool.get("input_schema"))


def _check_callers(reader: Reader, callers: list[Any], path: str) -> None:
    if "direct" not in callers and not reader.lenient:
        message = f"{path}: only the model itself calls tools here; add 'direct', or leave it out"
        raise invalid(message, path, "unsupported_value")
    reader.report.ignored(path, "the model itself makes every call here")


def _choice(reader: Reader, value: dict[str, Any], path: str, names: list[str]) -> tuple[ToolChoice, bool | None]:
    choice = reader.read(TOOL_CHOICE, value, path)
    kind = choice.get("type")
    if kind is None:
        raise invalid(f"{path}.type is required", f"{path}.type", "missing_required_parameter")
    parallel = False if choice.get("disable_parallel_tool_use") else None
    if kind == "tool":
        named = ToolChoice("required", (_offered(choice, path, names),))
        reader.report.changed(path, "the tools are narrowed to the named one", shown=f"{path}>tools")
        return named, parallel
    if "name" in choice:
        raise invalid(f"{path}.name needs type 'tool'", f"{path}.name", "unsupported_parameter")
    if kind == "any" and not names:
        raise invalid(f"{path}: a call is required but no tools are offered; Deck runs none itself", path)
    if kind == "none" and names:
        reader.report.changed(path, "no tools are offered", shown=f"{path}=none>tools")
    return ToolChoice(_MODES[kind]), parallel  # type: ignore[arg-type]  # the table's values are the three modes


def _offered(choice: Values, path: str, names: list[str]) -> str:
    where = f"{path}.name"
    if "name" not in choice:
        raise invalid(f"{where} is required", where, "missing_required_parameter")
    name = str(choice.get("name"))
    if name not in names:
        raise invalid(f"{where}: no tool named {name[:100]!r} is offered; Deck runs none itself", where)
    return name
