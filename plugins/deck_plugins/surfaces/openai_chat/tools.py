"""Read the tools of Chat Completions and the choice among them, deprecated functions included."""

from __future__ import annotations

from typing import Any

from deck.api import Reader, Tool, ToolChoice, Values, invalid, out_of_range, wrong_type

from .fields import FUNCTION, TOOL

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
                if isinstance(value, dict):
                    _check_members(reader, value, where, "name")
                    value = {"type": "function", "name": value.get("name")}
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
    kind = value.get("type")
    if not isinstance(kind, str):
        raise wrong_type(f"{path}.type", "a string", kind)
    if kind in _MODES and set(value) == {"type"}:
        return ToolChoice(_MODES[kind])  # type: ignore[arg-type]  # likewise
    if kind == "function":
        return ToolChoice("required", (_named(reader, value, path, names),))
    if kind == "allowed_tools":
        allowed: Any = value
        at = path
        if "allowed_tools" in value:
            _check_members(reader, value, path, "type", "allowed_tools")
            allowed, at = value["allowed_tools"], f"{path}.allowed_tools"
        if isinstance(allowed, dict):
            _check_members(reader, allowed, at, "mode", "tools", *(("type",) if at == path else ()))
        mode, listed = (allowed.get("mode"), allowed.get("tools")) if isinstance(allowed, dict) else (None, None)
        if mode not in ("auto", "required") or not isinstance(listed, list):
            raise invalid(f"{path}: allowed_tools takes a mode auto or required and tools", path, "unsupported_value")
        return ToolChoice(
            mode, tuple(_named(reader, tool, f"{at}.tools[{place}]", names) for place, tool in enumerate(listed))
        )
    raise invalid(f"{path}: {kind!r} cannot be forced here; Deck runs no tools", path, "unsupported_value")


def _named(reader: Reader, value: Any, path: str, names: list[str]) -> str:
    """Return the name of an offered function, which stands in the object or in its `function`."""
    function = value
    if isinstance(value, dict):
        _check_members(reader, value, path, "type", "name", "function")
        if value.get("type", "function") != "function":
            raise invalid(f"{path}.type: {value['type']!r} cannot be chosen here; Deck runs no tools", f"{path}.type")
        if "function" in value:
            function = value["function"]
            if isinstance(function, dict):
                _check_members(reader, function, f"{path}.function", "name")
                if "name" in value and value["name"] != function.get("name"):
                    at = f"{path}.name"
                    raise invalid(f"{at} and {path}.function.name say different things; send one of them", at)
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid(f"{path}: expected the name of a function", path, "missing_required_parameter")
    if name not in names:
        raise invalid(f"{path}: no tool named {name!r} is offered", path, "unsupported_value")
    return name


def _check_members(reader: Reader, value: dict[str, Any], path: str, *known: str) -> None:
    """Refuse members that mean nothing there; a lenient reader only says so."""
    for name in value:
        if name not in known:
            at = f"{path}.{name}"
            if not reader.lenient:
                raise invalid(f"{at}: unknown field; known are {', '.join(known)}", at, "unknown_parameter")
            reader.report.ignored(at, "unknown field")
