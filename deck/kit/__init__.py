"""What families are built from: filters over canonical events, and the syntaxes in which models write calls as text."""

from deck.kit.chain import OwnStops, chain
from deck.kit.cursor import Cursor, NeedsMore, NotACall, Tag
from deck.kit.family import Sampling, StandardFamily
from deck.kit.json_calls import (
    BareJson,
    BracketedCalls,
    CallMarks,
    HarmonyCalls,
    HeadedJson,
    PrefixedJson,
    PythonCalls,
    TaggedJson,
)
from deck.kit.markup_calls import ArgumentPairs, Invokes, SectionedCalls, TaggedFunction
from deck.kit.parts import PartWriter
from deck.kit.rescue import Rescue, offered, rescue_of
from deck.kit.switches import KWARG, Switch
from deck.kit.syntax import Found, Grammar, Stray, Syntax, WrittenCall, call_of, calls_of, typed
from deck.kit.thinking import BlockMarks, HarmonyChannels, ThinkTags, block_marks, think_tags
from deck.kit.unshown import Telling

# How documents call the syntaxes that several families share.
TAGGED_JSON = '<tool_call>{"name": …}</tool_call>'
TAGGED_FUNCTION = "<function=name><parameter=key>…"
ARGUMENT_PAIRS = "<tool_call>name<arg_key>…<arg_value>…"
BARE_JSON = 'an answer that is nothing but {"name": …}'
PYTHON_CALLS = "<|tool_call_start|>[name(key=value)]<|tool_call_end|>"

__all__ = [
    "ARGUMENT_PAIRS",
    "BARE_JSON",
    "KWARG",
    "PYTHON_CALLS",
    "TAGGED_FUNCTION",
    "TAGGED_JSON",
    "ArgumentPairs",
    "BareJson",
    "BlockMarks",
    "BracketedCalls",
    "CallMarks",
    "Cursor",
    "Found",
    "Grammar",
    "HarmonyCalls",
    "HarmonyChannels",
    "HeadedJson",
    "Invokes",
    "NeedsMore",
    "NotACall",
    "OwnStops",
    "PartWriter",
    "PrefixedJson",
    "PythonCalls",
    "Rescue",
    "Sampling",
    "SectionedCalls",
    "StandardFamily",
    "Stray",
    "Switch",
    "Syntax",
    "Tag",
    "TaggedFunction",
    "TaggedJson",
    "Telling",
    "ThinkTags",
    "WrittenCall",
    "block_marks",
    "call_of",
    "calls_of",
    "chain",
    "offered",
    "rescue_of",
    "think_tags",
    "typed",
]
