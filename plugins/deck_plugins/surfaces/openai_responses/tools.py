"""Read the tools of Responses and the choice among them: functions, custom tools, namespaces of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from deck.api import Reader, Tool, ToolChoice, Treatment, Values, invalid, out_of_range, wrong_type

from .item_fields import ADDITIONAL_TOOLS
from .names import TOP, Named, upstream_name
from .tool_fields import CHOICE, CUSTOM, CUSTOM_FORMAT, FUNCTION, NAMESPACE, TOOLS

_STRICT = "llama-server constrains the call by a grammar; a whole call that Deck finds to hold is not listed"
_MODES: Mapping[Any, Literal["auto", "none", "required"]] = {"none": "none", "auto": "auto", "required": "required"}
# The one argument of the function that a custom tool becomes.
ARGUMENT = "input"
_ONE_STRING = {
    "type": "object",
    "properties": {ARGUMENT: {"type": "string", "description": "The whole input of the tool, as it is."}},
    "required": [ARGUMENT],
    "additionalProperties": False,
}


@dataclass(slots=True)
class Offered:
    """The tools of a request: for llama-server, for the client's answer, and what is what.

    `may_repeat` lets a tool come again if it is the same.
    """

    tools: list[Tool] = field(default_factory=list)
    named: dict[str, Named] = field(default_factory=dict)
    shown: list[dict[str, Any]] = field(default_factory=list)
    may_repeat: bool = False
    choice: ToolChoice | None = None
    shown_choice: Any = "auto"
    _told: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def add(self, tool: Tool, named: Named, path: str) -> None:
        """Offer one more.

        Raises:
            DeckError: another tool has its name at llama-server.
        """
        told = (named, tool.description, tool.parameters)
        if self.may_repeat and self._told.get(tool.name) == told:
            return
        if tool.name in self.named:
            other = self.named[tool.name]
            if other.namespace == named.namespace:
                raise invalid(f"{path}.name: {named.name!r} is defined twice", f"{path}.name")
            raise invalid(
                f"{path}.name: {_full(named)} and {_full(other)} are both {tool.name!r} at llama-server; rename one",
                f"{path}.name",
            )
        self.named[tool.name] = named
        self._told[tool.name] = told
        self.tools.append(tool)


def _full(named: Named) -> str:
    return f"{named.name!r} of the namespace {named.namespace!r}" if named.namespace else repr(named.name)


def read_tools(reader: Reader, fields: Values) -> Offered:
    """Return the tools to offer, and the choice; no tools = no choice.

    Raises:
        DeckError: a tool or the choice cannot be honoured.
    """
    offered, where = Offered(), fields.path("tools")
    for place, item in enumerate(fields.get("tools") or []):
        if shown := _read(reader, offered, item, f"{where}[{place}]", None):
            offered.shown.append(shown)
    _read_additional(reader, offered, fields)
    if "tool_choice" in fields:
        value, where = fields.get("tool_choice"), fields.path("tool_choice")
        choice = _choice(reader, offered, value, where)
        offered.shown_choice = _shown(value, choice)
        if not offered.tools and choice.mode == "required":
            raise invalid(f"{where}: a call is required but no tools are offered", where)
        offered.choice = choice if offered.tools else None
    return offered


def _read_additional(reader: Reader, offered: Offered, fields: Values) -> None:
    """Offer the tools that stand in the input, where agents repeat them with every request."""
    sent, where = fields.get("input"), fields.path("input")
    for place, item in enumerate(sent if isinstance(sent, list) else []):
        if not isinstance(item, dict) or item.get("type") != "additional_tools":
            continue
        path = f"{where}[{place}]"
        more = reader.read(ADDITIONAL_TOOLS, item, path)
        if "tools" not in more:
            raise invalid(f"{path}.tools is required", f"{path}.tools", "missing_required_parameter")
        reader.report.changed(path, "its tools are offered from the beginning", shown=f"{path}>tools")
        offered.may_repeat = True
        for number, tool in enumerate(more.get("tools")):
            _read(reader, offered, tool, f"{path}.tools[{number}]", None)


def _read(reader: Reader, offered: Offered, item: Any, path: str, namespace: str | None) -> dict[str, Any] | None:
    """Offer one tool, or the tools of a namespace; return how the answer shows it, None = it was taken out."""
    if not isinstance(item, dict):
        raise wrong_type(path, "an object", item)
    kind = item.get("type", "function")
    row = TOOLS.find(kind) if isinstance(kind, str) else None
    if row is None:
        _unknown(reader, kind, path)
        return None
    if row.treatment is not Treatment.MAPPED:
        reader.report.ignored(f"{path}({kind})", row.reason, field="tools[]")
        return None
    if kind == "function":
        return _function(reader, offered, item, path, namespace)
    if kind == "custom":
        return _custom(reader, offered, item, path, namespace)
    if namespace is not None:
        raise invalid(f"{path}.type: a namespace holds functions and custom tools", f"{path}.type", "unsupported_value")
    return _namespace(reader, offered, item, path)


def _unknown(reader: Reader, kind: Any, path: str) -> None:
    if reader.lenient and isinstance(kind, str):
        reader.report.ignored(f"{path}({kind})", "unknown kind of tool", field="other")
        return
    known = ", ".join(row.name for row in TOOLS)
    raise invalid(f"{path}.type: unknown kind of tool {kind!r}; known: {known}", f"{path}.type", "unsupported_value")


def _function(
    reader: Reader, offered: Offered, item: dict[str, Any], path: str, namespace: str | None
) -> dict[str, Any]:
    if isinstance(item.get("function"), dict) and "name" not in item:
        reader.report.changed(path, "a nested function is read as a flat one", shown=f"{path}.function>{path}")
        inner: dict[str, Any] = item["function"]
        item = {**inner, **{key: value for key, value in item.items() if key != "function"}}
    tool = reader.read(FUNCTION, item, path)
    name = _name(tool, path)
    strict_path = f"{path}.strict" if tool.get("strict") else None
    if strict_path is not None:
        reader.report.ignored(strict_path, _STRICT)
    description, parameters = tool.get("description"), tool.get("parameters")
    offered.add(
        Tool(upstream_name(name, namespace), description, parameters, f"{path}.parameters", strict_path),
        Named("function", name, _borne(namespace)),
        path,
    )
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": parameters,
        "strict": tool.get("strict"),
    }


def _custom(reader: Reader, offered: Offered, item: dict[str, Any], path: str, namespace: str | None) -> dict[str, Any]:
    tool = reader.read(CUSTOM, item, path)
    name, description = _name(tool, path), tool.get("description")
    shown = {"type": "custom", "name": name} | ({"description": description} if description is not None else {})
    if "format" in tool:
        form = reader.read(CUSTOM_FORMAT, tool.get("format"), f"{path}.format")
        shown["format"], rule = _format(form, f"{path}.format")
        if rule:
            reader.report.ignored(f"{path}.format", "its description tells the rule; llama-server does not enforce it")
            description = f"{description}\n\n{rule}" if description else rule
    reader.report.changed(
        path, "a custom tool is carried as a function with one string argument", shown=f"{path}:custom>function"
    )
    tool_ = Tool(upstream_name(name, namespace), description, _ONE_STRING, path)
    offered.add(tool_, Named("custom", name, _borne(namespace)), path)
    return shown


def _format(form: Values, path: str) -> tuple[dict[str, Any], str]:
    """Return the format as it is shown, and what the model is told of it."""
    kind = form.get("type", "text")
    if kind == "text":
        for member in ("syntax", "definition"):
            if member in form:
                raise invalid(f"{path}.{member}: a text has none", f"{path}.{member}", "unsupported_parameter")
        return {"type": "text"}, ""
    for member in ("syntax", "definition"):
        if member not in form:
            raise invalid(f"{path}.{member} is required", f"{path}.{member}", "missing_required_parameter")
    syntax, definition = form.get("syntax"), form.get("definition")
    word = "Lark grammar" if syntax == "lark" else "regular expression"
    shown = {"type": "grammar", "syntax": syntax, "definition": definition}
    return shown, f"The input must match this {word}:\n{definition}"


def _namespace(reader: Reader, offered: Offered, item: dict[str, Any], path: str) -> dict[str, Any]:
    group = reader.read(NAMESPACE, item, path)
    for member in ("name", "tools"):
        if member not in group:
            raise invalid(f"{path}.{member} is required", f"{path}.{member}", "missing_required_parameter")
    name, description, first = group.get("name"), group.get("description"), len(offered.tools)
    children = [
        shown
        for place, child in enumerate(group.get("tools"))
        if (shown := _read(reader, offered, child, f"{path}.tools[{place}]", name)) is not None
    ]
    if _borne(name) and len(offered.tools) > first:
        reader.report.changed(path, "its tools are offered under joined names", shown=f"{path}:namespace>function")
    if description and len(offered.tools) > first:
        _describe(offered, first, name, description)
    return {"type": "namespace", "name": name, "description": description or "", "tools": children}


def _describe(offered: Offered, first: int, name: str, description: str) -> None:
    """Tell what a namespace is for where the model reads it: after the description of its first tool."""
    tool, told = offered.tools[first], f"(Of all tools of {name}: {description})"
    text = f"{tool.description}\n\n{told}" if tool.description else told
    offered.tools[first] = replace(tool, description=text)


def _borne(namespace: str | None) -> str | None:
    """Return the namespace that a call must bear, None for a tool at the top."""
    return None if namespace in ("", TOP) else namespace


def _name(tool: Values, path: str) -> str:
    if "name" not in tool:
        raise invalid(f"{path}.name is required", f"{path}.name", "missing_required_parameter")
    return str(tool.get("name"))


def _choice(reader: Reader, offered: Offered, value: Any, path: str) -> ToolChoice:
    choice = _read_choice(reader, offered, value, path)
    if choice.names is not None:
        reader.report.changed(path, "the tools are narrowed to the named ones", shown=f"{path}>tools")
    elif choice.mode == "none" and offered.tools:
        reader.report.changed(path, "no tools are offered", shown=f"{path}=none>tools")
    return choice


def _shown(value: Any, choice: ToolChoice) -> Any:
    """Return a choice in the wire's own form, whichever form it came in."""
    if not isinstance(value, dict) or value.get("type") in _MODES:
        return choice.mode
    if value["type"] == "allowed_tools":
        return value
    name = value.get("name") or value["function"]["name"]
    namespace = {"namespace": value["namespace"]} if value.get("namespace") else {}
    return {"type": value["type"], "name": name} | namespace


def _read_choice(reader: Reader, offered: Offered, value: Any, path: str) -> ToolChoice:
    if isinstance(value, str):
        if value not in _MODES:
            raise out_of_range(path, "one of none, auto, required, or an object", value)
        return ToolChoice(_MODES[value])
    if not isinstance(value, dict):
        raise wrong_type(path, "a string or an object", value)
    choice = reader.read(CHOICE, value, path)
    kind = choice.get("type")
    if kind in _MODES and len(choice.values) == 1:
        return ToolChoice(_MODES[kind])
    foreign = ("name", "namespace", "function") if kind == "allowed_tools" else ("mode", "tools")
    for member in foreign:
        if member in choice:
            at = f"{path}.{member}"
            raise invalid(f"{at}: a choice of type {kind} has none", at, "unsupported_parameter")
    if kind in ("function", "custom"):
        return ToolChoice("required", _named(offered, choice, path))
    if kind == "allowed_tools":
        return _allowed(reader, offered, choice, path)
    if kind is None:
        raise invalid(f"{path}.type is required", f"{path}.type", "missing_required_parameter")
    raise invalid(f"{path}: {kind!r} cannot be forced here; Deck runs no tools", path, "unsupported_value")


def _allowed(reader: Reader, offered: Offered, choice: Values, path: str) -> ToolChoice:
    for member in ("mode", "tools"):
        if member not in choice:
            raise invalid(f"{path}.{member} is required", f"{path}.{member}", "missing_required_parameter")
    names: list[str] = []
    for place, item in enumerate(choice.get("tools")):
        where = f"{path}.tools[{place}]"
        if not isinstance(item, dict):
            raise wrong_type(where, "an object", item)
        kind = item.get("type")
        row = TOOLS.find(kind) if isinstance(kind, str) else None
        if row is not None and row.treatment is not Treatment.MAPPED:
            reader.report.ignored(f"{where}({kind})", row.reason, field="tool_choice")
            continue
        names += _named(offered, reader.read(CHOICE, item, where), where)
    mode = choice.get("mode")
    if not names and mode == "required":
        raise invalid(f"{path}: a call is required but none of the allowed tools can be called here", path)
    return ToolChoice(mode, tuple(names))


def _named(offered: Offered, item: Values, path: str) -> tuple[str, ...]:
    """Return the names at llama-server of the tool, or of the tools of the namespace, that a choice names."""
    kind, name = item.get("type"), item.get("name")
    if name is None and "function" in item:
        name = item.get("function").get("name")
    if kind not in ("function", "custom", "namespace") or not isinstance(name, str):
        raise invalid(f"{path}: expected the type and name of a tool", path, "missing_required_parameter")
    if kind == "namespace":
        found = tuple(key for key, named in offered.named.items() if named.namespace == name)
    else:
        key = upstream_name(name, item.get("namespace"))
        found = (key,) if key in offered.named and offered.named[key].kind == kind else ()
    if not found:
        raise invalid(f"{path}: no {kind} named {name!r} is offered", path, "unsupported_value")
    return found
