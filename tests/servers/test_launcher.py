"""Flags that a family wants: of the family that the profile names, or that the model's file says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deck.config import Config
from deck.contracts import Facts
from deck.kit import StandardFamily
from deck.profile import Profile
from deck.servers import LocalLauncher
from deck.servers.gguf import facts_of_file
from deck.servers.process import Process

MakeProfile = Callable[..., Profile]
WANTING = StandardFamily(name="wanting", title="Wanting", source="", flags=("--special",))
PLAIN = StandardFamily(name="plain", title="Plain", source="")


class _Plugins:
    """Stands in for the plugins: two families, and the facts that were asked with."""

    def __init__(self, *families: StandardFamily) -> None:
        self.families = {family.name: family for family in families}
        self.asked: list[Facts] = []

    def family(self, profile: Profile, facts: Facts) -> tuple[StandardFamily, str]:
        self.asked.append(facts)
        return self.families[profile.family or "plain"], ""


def launched(profile: Profile, plugins: Any) -> Process:
    server = LocalLauncher(Config(), plugins).launch(profile)
    assert isinstance(server, Process)
    return server


def test_the_flags_of_the_familys_reach_the_server(make_profile: MakeProfile) -> None:
    profile = make_profile().model_copy(update={"family": "wanting"})
    assert launched(profile, _Plugins(WANTING, PLAIN))._family_arguments == ("--special",)
    assert launched(make_profile(), _Plugins(WANTING, PLAIN))._family_arguments == ()


def test_the_file_is_not_read_where_no_family_wants_a_flag(make_profile: MakeProfile) -> None:
    plugins = _Plugins(PLAIN)
    launched(make_profile(), plugins)
    assert plugins.asked == []


def test_what_a_file_says_is_what_its_server_would_say(tmp_path: Path) -> None:
    model = Path(__file__).parents[2] / "profiles" / "tiny-chat" / "tiny-chat.gguf"
    facts = facts_of_file(model)
    assert facts.metadata["general.architecture"]
    assert facts.template
    assert facts_of_file(tmp_path / "none.gguf") == Facts(metadata={})
    assert facts_of_file(None) == Facts()


@pytest.mark.parametrize("flag", ["--host", "--model"])
def test_a_flag_that_is_decks_own_fails_the_start(flag: str, make_profile: MakeProfile) -> None:
    server = Process(make_profile(), Config(), family_arguments=(flag, "x"))
    with pytest.raises(Exception, match=f"{flag} may not be among the arguments of the model's family"):
        server._prepared()
