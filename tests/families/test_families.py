"""What the families are: how they are chosen, what they default to, and that each passes the kit for tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from families_support import CASES, FAMILIES

from deck.config import Config
from deck.contracts import Facts, Family
from deck.kit import StandardFamily
from deck.normalize.report import Report
from deck.normalize.sampling import SAMPLING_NAMES
from deck.plugins import Plugins
from deck.profile import Profile, ServerSettings
from deck.testing.family import ASKED, check_adapt, check_family

NAMES = sorted(FAMILIES)
# Marks of templates as llama.cpp ships them, and the family that they say.
TEMPLATES = {
    "qwen": [
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
        "<|im_start|> <tool_call> ns.multi_step_tool enable_thinking",
        "<|im_start|>system\nYou are Qwen, a helpful AI assistant render_extra_keys",
    ],
    "glm": ["[gMASK]<sop> <arg_key> <|observation|>"],
    "deepseek": ["<｜User｜> <｜Assistant｜> <｜tool▁calls▁begin｜>", "<｜Assistant｜> ｜DSML｜"],
    "gpt_oss": ["<|start|>assistant<|channel|>final<|message|>"],
    "kimi": ["<|im_user|>user<|im_middle|>", "tool-declare <|end_of_msg|>"],
    "mistral": ["[INST] [TOOL_CALLS]", "[SYSTEM_PROMPT] [INST]"],
    "llama": ["<|start_header_id|>ipython<|end_header_id|>"],
    "gemma": ["<start_of_turn>model", "<|turn>model"],
    "granite": ["<|start_of_role|>assistant<|end_of_role|>"],
    "minimax": ["]~b]ai", "<beginning_of_sentence>ai"],
    "nemotron": ["<TOOLCALL>[", "truncate_history_thinking <function="],
    "inkling": ["<|message_model|><|content_text|>"],
    "generic": [
        "<|im_start|>assistant\n",
        "<|start_header_id|>assistant<|end_header_id|>",
        "[INST] <<SYS>>",
        "<tool_call>",
    ],
}


def profile(**keys: object) -> Profile:
    return Profile(id="any", server=ServerSettings(url="http://127.0.0.1:1"), **keys)  # type: ignore[arg-type]  # any key


@pytest.mark.parametrize(("name", "template"), [(name, text) for name, texts in TEMPLATES.items() for text in texts])
def test_a_model_is_known_by_its_template(name: str, template: str) -> None:
    plugins = Plugins(Config())
    facts = Facts(template=template, metadata={"general.architecture": "llama"})
    assert plugins.family(profile(), facts)[0].name == name
    takers = [
        family.name for family in FAMILIES.values() if isinstance(family, StandardFamily) and family.accepts(facts)
    ]
    assert takers == ([] if name == "generic" else [name])


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("qwen3moe", "qwen"),
        ("glm4moe", "glm"),
        ("gpt-oss", "gpt_oss"),
        ("gemma3", "gemma"),
        ("llama", "generic"),
        ("qwen2", "qwen"),
    ],
)
def test_an_architecture_counts_where_there_is_no_template(architecture: str, name: str) -> None:
    """Architectures that hold models of several families say nothing."""
    facts = Facts(metadata={"general.architecture": architecture})
    assert Plugins(Config()).family(profile(), facts)[0].name == name


def test_no_architecture_is_of_two_families() -> None:
    seen: dict[str, str] = {}
    for family in FAMILIES.values():
        assert isinstance(family, StandardFamily)
        for architecture in family.architectures:
            assert seen.setdefault(architecture, family.name) == family.name


def test_the_profile_has_the_last_word() -> None:
    facts = Facts(template="[gMASK]<sop> <arg_key> <|observation|>")
    assert Plugins(Config()).family(profile(family="qwen"), facts)[0].name == "qwen"


@pytest.mark.parametrize("name", NAMES)
def test_a_family_passes_the_kit(name: str) -> None:
    family = FAMILIES[name]
    assert isinstance(family, Family)
    check_family(family, [leak for owner, _, leak in CASES if owner == name])
    for template in TEMPLATES[name]:
        check_adapt(family, Facts(template=template))


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_known_fields_and_say_where_they_are_from(name: str) -> None:
    family = FAMILIES[name]
    for template in ("", *TEMPLATES[name]):
        assert set(family.defaults(Facts(template=template))) <= SAMPLING_NAMES
    for values, source in family.features.sampling:
        assert values
        assert source.startswith("https://")
    assert family.features.title
    assert family.features.source


def test_gpt_oss_shows_each_call_in_a_turn_of_its_own() -> None:
    facts = Facts(template=TEMPLATES["gpt_oss"][0])
    made = {item.name: item for item in check_adapt(FAMILIES["gpt_oss"], facts)}
    assert [item.role for item in made["two calls"].request.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    assert "messages[1].content>reasoning_content" in [
        note.shown for note in made["thoughts beside a call"].report.notes
    ]


def test_mistral_counts_turns() -> None:
    facts = Facts(template="[INST] [TOOL_CALLS] conversation roles must alternate user/assistant")
    made = {item.name: item for item in check_adapt(FAMILIES["mistral"], facts)}
    assert [item.role for item in made["a user behind a result"].request.messages] == ["user", "assistant", "tool"]


def test_nothing_is_made_where_nothing_is_offered() -> None:
    for family in FAMILIES.values():
        plain = replace(ASKED, tools=())
        found = family.filter(plain, Report(), "seed")
        assert found is None or type(found).__name__ in ("ThinkTags", "HarmonyChannels", "BlockMarks")
