"""Read the tools of Chat Completions and the choice among them, deprecated functions included."""

from __future__ import annotations

from typing import Any

from deck.api import Reader, Tool, ToolChoice, Values, invalid, out_of_range, wrong_type

from .fields import ALLOWED, CHOICE, CHOSEN, FUNCTION, TOOL

_MODES = {"none": "none", "auto": "auto", "required": "required", "any": "required"}
_STRICT = "llama-server constrains the call by a grammar; a whole call that Deck finds to hold is not listed"


def read_tools(reader: Reader, fields: Values) -> tuple[tuple[Tool, ...], ToolChoice | None]:
    """Return the tools to offer, and the choice; no tools = no choice.

    Raises:
        DeckError: a tool or the choice cannot be honoured.
    """
    if fields.get("functions") and fields.get("tools"):
        raise invalid("'functions' is the old name of 'tools'; send one of them", fields.path("functions"))
    if "function_call" in fields and "tool_choice" in fields:
        where = fields.path("function_call")
        raise invalid("'function_call' is the old name of 'tool_choice'; send one of them", where)
    tools = _tools(reader, fields)
    names = [tool.name for tool in tools]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled:
        where = fields.path("functions" if fields.get("functions") else "tools")
        raise invalid(f"{where}: {doubled!r} is defined twice", where)
    choice = _choice(reader, fields, names)
    if not tools:
        if choice is not None and choice.mode == "required":
            where = fields.path("tool_choice")
            raise invalid(f"{where}: a call is required but no tools are offered", where)
        return (), None
    return tools, choice


def _tools(reader: Reader, fields: Values) -> tuple[Tool, ...]:
    if old := fields.get("functions"):
        where = fields.path("functions")
        reader.report.changed(where, "is read as tools", shown=f"{where}>tools")
        return tuple(_function(reader, item, f"{where}[{place}]") for place, item in enumerate(old))
    where = fields.path("tools")
    found = (_tool(reader, item, f"{where}[{place}]") for place, item in enumerate(fields.get("tools") or []))
    return tuple(tool for tool in found if tool is not None)


def _tool(reader: Reader, item: Any, path: str) -> Tool | None:
    if not isinstance(item, dict):
        raise wrong_type(path, "an object", item)
    kind = item.get("type", "function")
    if kind == "custom":
        raise invalid(f"{path}: custom tools belong to /v1/responses", f"{path}.type", "unsupported_value")
    if not isinstance(kind, str):
        raise wrong_type(f"{path}.type", "a string", kind)
    if kind != "function":
        reader.report.ignored(path, f"{kind!r} runs at a vendor; Deck runs no tools", field="tools[]")
        return None
    outer = reader.read(TOOL, item, path)
    if "function" in outer:
        inner, where = outer.get("function"), f"{path}.function"
        for member in ("name", "description", "parameters"):
            if member in outer and outer.get(member) != inner.get(member):
                at = f"{path}.{member}"
                raise invalid(f"{at} and {where}.{member} say different things; send one of them", at)
        return _function(reader, inner, where, strict_path=f"{path}.strict" if outer.get("strict") else None)
    reader.report.changed(path, "a flat tool is read as a function tool", shown=f"{path}>{path}.function")
    flat = {key: value for key, value in item.items() if key not in ("type", "cache_control", "defer_loading")}
    return _function(reader, flat, path)


def _function(reader: Reader, item: Any, path: str, strict_path: str | None = None) -> Tool:
    if not isinstance(item, dict):
        raise wrong_type(path, "an object", item)
    function = reader.read(FUNCTION, item, path)
    if "name" not in function:
        raise invalid(f"{path}.name is required", f"{path}.name", "missing_required_parameter")
    if function.get("strict"):
        strict_path = f"{path}.strict"
    if strict_path is not None:
        reader.report.ignored(strict_path, _STRICT)
    parameters = function.get("parameters")
    return Tool(function.get("name"), function.get("description"), parameters, f"{path}.parameters", strict_path)


def _choice(reader: Reader, fields: Values, names: list[str]) -> ToolChoice | None:
    for field in ("tool_choice", "function_call"):
        if field in fields:
            value, where = fields.get(field), fields.path(field)
            if field == "function_call":
                reader.report.changed(where, "is read as tool_choice", shown=f"{where}>tool_choice")
            if field == "function_call" and isinstance(value, dict):
                name = _offered(reader.read(CHOSEN, value, where).get("name"), where, names)
                choice = ToolChoice("required", (name,))
            else:
                choice = _read_choice(reader, value, where, names)
            if choice.names is not None:
                reader.report.changed(where, "the tools are narrowed to the named ones", shown=f"{where}>tools")
            elif choice.mode == "none" and names:
                reader.report.changed(where, "no tools are offered", shown=f"{where}=none>tools")
            elif value != choice.mode:
                reader.report.changed(where, f"is read as {choice.mode}", shown=f"{where}>{choice.mode}")
            return choice
    return None


def _read_choice(reader: Reader, value: Any, path: str, names: list[str]) -> ToolChoice:
    if isinstance(value, str):
        if value not in _MODES:
            raise out_of_range(path, "one of none, auto, required, or a function", value)
        return ToolChoice(_MODES[value])  # type: ignore[arg-type]  # the table's values are the three modes
    if not isinstance(value, dict):
        raise wrong_type(path, "a string or an object", value)
    choice = reader.read(CHOICE, value, path)
    kind = choice.get("type")
    if kind is None:
        raise wrong_type(f"{path}.type", "a string", kind)
    if kind in _MODES and len(choice.values) == 1:
        return ToolChoice(_MODES[kind])  # type: ignore[arg-type]  # likewise
    if kind == "function":
        return ToolChoice("required", (_named(reader, choice, path, names),))
    if kind == "allowed_tools":
        return _allowed(reader, choice, path, names)
    raise invalid(f"{path}: {kind!r} cannot be forced here; Deck runs no tools", path, "unsupported_value")


def _allowed(reader: Reader, choice: Values, path: str, names: list[str]) -> ToolChoice:
    allowed, at = choice, path
    if "allowed_tools" in choice:
        _refuse(choice, path, "mode", "tools")
        at = f"{path}.allowed_tools"
        allowed = reader.read(ALLOWED, choice.get("allowed_tools"), at)
    _refuse(choice, path, "name", "function")
    if "mode" not in allowed or "tools" not in allowed:
        raise invalid(f"{path}: allowed_tools takes a mode auto or required and tools", path, "unsupported_value")
    found = []
    for place, item in enumerate(allowed.get("tools")):
        where = f"{at}.tools[{place}]"
        if not isinstance(item, dict):
            raise wrong_type(where, "an object", item)
        found.append(_named(reader, reader.read(CHOICE, item, where), where, names))
    return ToolChoice(allowed.get("mode"), tuple(found))


def _named(reader: Reader, choice: Values, path: str, names: list[str]) -> str:
    """Return the name of an offered function, which stands in the object or in its `function`."""
    if (kind := choice.get("type", "function")) != "function":
        raise invalid(f"{path}.type: {kind!r} cannot be chosen here; Deck runs no tools", f"{path}.type")
    _refuse(choice, path, "mode", "tools", "allowed_tools")
    name = choice.get("name")
    if "function" in choice:
        inner = reader.read(CHOSEN, choice.get("function"), f"{path}.function").get("name")
        if name not in (None, inner):
            at = f"{path}.name"
            raise invalid(f"{at} and {path}.function.name say different things; send one of them", at)
        name = inner
    return _offered(name, path, names)


def _offered(name: str | None, path: str, names: list[str]) -> str:
    if name is None:
        raise invalid(f"{path}: expected the name of a function", path, "missing_required_parameter")
    if name not in names:
        raise invalid(f"{path}: no tool named {name!r} is offered", path, "unsupported_value")
    return name


def _refuse(choice: Values, path: str, *members: str) -> None:
    """Refuse members that belong to a choice of another type."""
    for member in members:
        if member in choice:
            at = f"{path}.{member}"
            raise invalid(f"{at}: a choice of this type has none", at, "unsupported_parameter")
