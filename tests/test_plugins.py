"""Loading plugins: what each hook is given and gives, and what refuses start-up."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.metadata
import itertools
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pluggy
import pytest

from deck import hookspecs
from deck.api import ChatRequest, ExchangeRecord, Facts, Message, Report, Text
from deck.config import Config
from deck.plugins import GROUP, PluginError, Plugins
from deck.profile import Profile, ServerSettings

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "deck-family-echo"
GENERIC = importlib.metadata.EntryPoint("generic", "deck_plugins.families.generic", GROUP)
CHAT = importlib.metadata.EntryPoint("openai_chat", "deck_plugins.surfaces.openai_chat", GROUP)

FAMILY = """
    from deck.api import Features, hookimpl

    class Kind:
        name = "kind"
        features = Features(title="A kind")
        def defaults(self, facts): return {}
        def arguments(self): return ()
        def stops(self): return ()
        def adapt(self, request, facts, report): return request
        def filter(self, request, report, seed): return None

    @hookimpl
    def deck_register_families(config): return [Kind()]
"""
SURFACE = """
    from deck.api import Route, Table, hookimpl

    class Wire:
        name = {name!r}
        title = "A wire"
        routes = (Route(path={path!r}),)
        header_names = ()
        id_headers = ("x-request-id",)
        tables = {{"": Table("wire", ())}}
        def parse(self, body, report, options): raise NotImplementedError
        def projector(self, parsed, head): raise NotImplementedError
        def render(self, answer, parsed, head): return {{}}
        def error(self, error, request_id): return {{}}

    @hookimpl
    def deck_register_surfaces(config): return [Wire()]
"""
RECORD = ExchangeRecord(
    id="req_1",
    surface="chat",
    model="m",
    principal="me",
    outcome="ok",
    status=200,
    stream=False,
    duration=1.0,
    queued=0.0,
    first_token=None,
    prompt_tokens=None,
    completion_tokens=None,
    cached_tokens=None,
    finish=None,
    notes=(),
)

Install = Callable[..., importlib.metadata.EntryPoint]
_modules = itertools.count()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Write a module and the metadata of a distribution that has it, as an installer leaves them."""

    def write(
        name: str, source: str, *, distribution: str = "deck-demo", version: str = "1.2"
    ) -> importlib.metadata.EntryPoint:
        module = f"deck_demo_{next(_modules)}"
        site = tmp_path / module
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {module}\n")
        monkeypatch.syspath_prepend(site)
        (found,) = importlib.metadata.distributions(path=[str(site)])
        (point,) = found.entry_points
        return point

    return write


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(state=tmp_path / "state")


def profile(**keys: Any) -> Profile:
    return Profile(id="m", server=ServerSettings(url="http://127.0.0.1:9"), **keys)


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> importlib.metadata.EntryPoint:
    """The example, by the entry point that its own pyproject.toml declares."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((name, module),) = project["entry-points"][GROUP].items()
    monkeypatch.syspath_prepend(EXAMPLE)
    return importlib.metadata.EntryPoint(name, module, GROUP)


# The example


def test_the_example_is_found_through_its_entry_point(config: Config, echo: importlib.metadata.EntryPoint) -> None:
    plugins = Plugins(config, entry_points=[GENERIC, echo])
    assert sorted(plugins.families) == ["echo", "generic"]
    loaded = next(item for item in plugins.loaded if item.name == "echo")
    assert loaded.module == "deck_family_echo"
    assert loaded.hooks == ("deck_choose_family", "deck_register_families")


def test_the_example_is_chosen_by_facts_or_by_name(config: Config, echo: importlib.metadata.EntryPoint) -> None:
    plugins = Plugins(config, entry_points=[GENERIC, echo])
    facts = Facts(metadata={"general.architecture": "echo"})
    assert plugins.family(profile(), facts)[0].name == "echo"
    assert plugins.family(profile(family="echo"), Facts())[0].name == "echo"
    assert plugins.family(profile(), Facts())[0].name == "generic"


def test_the_example_passes_its_own_tests(echo: importlib.metadata.EntryPoint) -> None:
    tests = [item for name, item in vars(importlib.import_module("test_echo")).items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_the_example_changes_a_copy_and_says_so(config: Config, echo: importlib.metadata.EntryPoint) -> None:
    family = Plugins(config, entry_points=[echo]).families["echo"]
    asked = ChatRequest(model="m", messages=(Message("user", (Text("hi"),)),), sampling={"temperature": 1.5})
    report = Report()
    adapted = family.adapt(asked, Facts(), report)
    assert family.defaults(Facts()) == {"temperature": 0.2}
    assert (asked.sampling["temperature"], adapted.sampling["temperature"]) == (1.5, 1)
    assert report.headers() == [("X-Athena-Compatibility-Changed", "temperature=1.5>1")]


def test_the_example_imports_only_the_api() -> None:
    lines = (EXAMPLE / "deck_family_echo.py").read_text(encoding="utf-8").splitlines()
    imported = [line.split()[1] for line in lines if line.startswith(("import deck", "from deck"))]
    assert imported == ["deck.api"]


# The built-in plugins


def test_the_built_in_plugins_register_like_any_other(config: Config) -> None:
    declared = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    points = [
        importlib.metadata.EntryPoint(name, module, GROUP)
        for name, module in declared["project"]["entry-points"][GROUP].items()
    ]
    plugins = Plugins(config, entry_points=points)
    assert "chat" in plugins.surfaces
    assert "generic" in plugins.families
    assert plugins.routes["/chat/completions"][0].name == "chat"


# What refuses start-up


@pytest.mark.parametrize(
    ("source", "says"),
    [
        pytest.param("import a_module_that_is_not_there", "a_module_that_is_not_there", id="import"),
        pytest.param("this is no python", "invalid syntax", id="syntax"),
        pytest.param(
            "from deck.api import hookimpl\n@hookimpl\ndef deck_register_famlies(config): return []",
            "deck_register_famlies",
            id="unknown hook",
        ),
        pytest.param(
            "from deck.api import hookimpl\n@hookimpl\ndef deck_register_families(settings): return []",
            "settings",
            id="unknown argument",
        ),
    ],
)
def test_a_broken_plugin_is_named_with_its_distribution(
    config: Config, install: Install, source: str, says: str
) -> None:
    point = install("broken", source, distribution="deck-broken", version="0.3")
    with pytest.raises(PluginError) as caught:
        Plugins(config, entry_points=[GENERIC, point])
    message = str(caught.value)
    assert "'broken'" in message
    assert "deck-broken 0.3" in message
    assert says in message


def test_a_hook_that_raises_names_plugin_and_hook(config: Config, install: Install) -> None:
    source = """
        from deck.api import hookimpl

        @hookimpl
        def deck_register_families(config): raise RuntimeError("no licence")
    """
    with pytest.raises(PluginError, match=r"'angry' of deck-demo 1.2: deck_register_families failed: no licence"):
        Plugins(config, entry_points=[install("angry", source)])


@pytest.mark.parametrize("hook", ["surfaces", "families", "steps", "observers"])
def test_a_hook_that_returns_something_else_is_refused(config: Config, install: Install, hook: str) -> None:
    source = f"from deck.api import hookimpl\n@hookimpl\ndef deck_register_{hook}(config): return ['a string']"
    with pytest.raises(
        PluginError, match=rf"'odd' of deck-demo 1.2: deck_register_{hook} returned str, which is not a"
    ):
        Plugins(config, entry_points=[install("odd", source)])


def test_two_families_of_one_name_are_refused(config: Config, install: Install) -> None:
    points = [install("one", FAMILY), install("two", FAMILY, distribution="deck-other")]
    with pytest.raises(PluginError, match="family named 'kind'"):
        Plugins(config, entry_points=points)


def test_two_surfaces_of_one_name_are_refused(config: Config, install: Install) -> None:
    point = install("wire", SURFACE.format(name="chat", path="/wire"))
    with pytest.raises(PluginError, match="surface named 'chat'"):
        Plugins(config, entry_points=[CHAT, point])


def test_two_surfaces_on_one_route_are_refused(config: Config, install: Install) -> None:
    point = install("wire", SURFACE.format(name="wire", path="/chat/completions"))
    with pytest.raises(PluginError, match="both claim '/chat/completions'") as caught:
        Plugins(config, entry_points=[CHAT, point])
    assert "'chat'" in str(caught.value)
    assert "'wire'" in str(caught.value)


def test_two_plugins_of_one_name_are_refused(config: Config, install: Install) -> None:
    points = [install("same", "", distribution="deck-one"), install("same", "", distribution="deck-two")]
    with pytest.raises(PluginError, match="two plugins are named 'same'"):
        Plugins(config, entry_points=points)


def test_a_profile_that_names_no_family_is_refused(config: Config) -> None:
    plugins = Plugins(config, entry_points=[GENERIC])
    with pytest.raises(PluginError, match="no family named 'quen'; known: generic"):
        plugins.family(profile(family="quen"), Facts())


# One test for each hook


def test_hook_deck_add_commands(config: Config, install: Install) -> None:
    source = """
        from deck.api import hookimpl

        @hookimpl
        def deck_add_commands(subparsers):
            subparsers.add_parser("greet").set_defaults(run=lambda arguments: 7)
    """
    top = argparse.ArgumentParser()
    Plugins(config, entry_points=[install("commands", source)]).add_commands(top.add_subparsers())
    arguments = top.parse_args(["greet"])
    assert arguments.run(arguments) == 7


def test_hook_deck_register_surfaces(config: Config, install: Install) -> None:
    point = install("wire", SURFACE.format(name="wire", path="/wire"))
    plugins = Plugins(config, entry_points=[CHAT, point])
    assert sorted(plugins.surfaces) == ["chat", "wire"]
    surface, route = plugins.routes["/wire"]
    assert (surface.name, route.method, route.operation) == ("wire", "POST", "generate")


OPERATION = """
    from deck.api import Field, Operation, Table, hookimpl, string

    @hookimpl
    def deck_register_operations(config):
        return [
            Operation(
                name={name!r},
                title="Anything",
                paths={paths!r},
                kinds={{"image": frozenset()}},
                route="/x",
                tables={{"": Table("x", [Field.mapped("model", string())])}},
                render_error=lambda error: {{}},
                surface={surface!r},
            )
        ]
"""


def test_hook_deck_register_operations(config: Config, install: Install) -> None:
    point = install("upscale", OPERATION.format(name="upscale", paths=("/images/upscale",), surface=None))
    plugins = Plugins(config, entry_points=[CHAT, point])
    assert plugins.operation_routes["/images/upscale"].name == "upscale"
    assert plugins.routes_of_kind("image") == ["/v1/images/upscale"]
    assert plugins.routes_of_kind("chat") == ["/v1/chat/completions"]


@pytest.mark.parametrize(
    ("name", "paths", "surface", "said"),
    [
        ("chat", ("/x",), None, "are both named 'chat'"),
        ("x", ("/chat/completions",), None, "both claim '/chat/completions'"),
        ("x", ("/y", "/y"), None, "both claim '/y'"),
        ("x", ("/y",), "nobody", "needs the surface 'nobody'"),
    ],
)
def test_operations_that_clash(
    config: Config, install: Install, name: str, paths: tuple[str, ...], surface: str | None, said: str
) -> None:
    point = install("clash", OPERATION.format(name=name, paths=paths, surface=surface))
    with pytest.raises(PluginError, match=said):
        Plugins(config, entry_points=[CHAT, point])


def test_hook_deck_register_families(config: Config, install: Install) -> None:
    plugins = Plugins(config, entry_points=[GENERIC, install("kind", FAMILY)])
    assert sorted(plugins.families) == ["generic", "kind"]


def test_hook_deck_register_steps(config: Config, install: Install) -> None:
    """Steps run by phase, then by name, whoever registered them and in whatever order."""
    source = """
        from deck.api import hookimpl

        class Step:
            def __init__(self, phase, name): self.phase, self.name = phase, name
            def apply(self, request, profile, report): return request

        @hookimpl
        def deck_register_steps(config): return [Step(*item) for item in {steps!r}]
    """
    points = [
        install("first", source.format(steps=[(20, "b"), (10, "z")])),
        install("second", source.format(steps=[(20, "a"), (10, "c")]), distribution="deck-other"),
    ]
    expected = [(10, "c"), (10, "z"), (20, "a"), (20, "b")]
    for order in (points, points[::-1]):
        plugins = Plugins(config, entry_points=order)
        assert [(step.phase, step.name) for step in plugins.steps] == expected


def test_hook_deck_register_observers(config: Config, install: Install) -> None:
    source = """
        from deck.api import hookimpl

        class Seen:
            def __init__(self): self.records = []
            def observe(self, record): self.records.append(record)

        @hookimpl
        def deck_register_observers(config): return [Seen()]
    """
    (observer,) = Plugins(config, entry_points=[install("seen", source)]).observers
    observer.observe(RECORD)
    assert vars(observer)["records"] == [RECORD]


def test_hook_deck_profile_dirs(config: Config, install: Install) -> None:
    source = """
        from pathlib import Path
        from deck.api import hookimpl

        @hookimpl
        def deck_profile_dirs(config): return [Path(config.state) / "more"]
    """
    plugins = Plugins(config, entry_points=[install("dirs", source)])
    assert plugins.profile_dirs() == [config.state / "more"]


def test_hook_deck_choose_family(config: Config, install: Install) -> None:
    """The first answer that is not None counts; a profile that names a family is not asked about."""
    source = """
        from deck.api import hookimpl

        @hookimpl
        def deck_choose_family(profile, facts):
            assert profile.id == "m"
            return "kind" if facts.template == "kind-of" else None
    """
    plugins = Plugins(config, entry_points=[GENERIC, install("kind", FAMILY), install("chooser", source)])
    assert plugins.family(profile(), Facts(template="kind-of")) == (plugins.families["kind"], "chosen from facts")
    assert plugins.family(profile(), Facts())[0].name == "generic"
    named = plugins.family(profile(family="generic"), Facts(template="kind-of"))
    assert named == (plugins.families["generic"], "the profile names it")


def test_hook_deck_make_policy(config: Config, install: Install) -> None:
    source = """
        from deck.api import hookimpl

        @hookimpl
        def deck_make_policy(config): return ("a policy", config.queue_limit)
    """
    assert Plugins(config, entry_points=[GENERIC]).policy() is None
    assert Plugins(config, entry_points=[install("policy", source)]).policy() == ("a policy", config.queue_limit)


def test_hook_deck_make_launcher(config: Config, install: Install) -> None:
    source = """
        from deck.api import hookimpl

        class Rented:
            def launch(self, profile): raise NotImplementedError

        @hookimpl
        def deck_make_launcher(profile, config): return Rented() if profile.id == "m" else None
    """
    assert Plugins(config, entry_points=[GENERIC]).launcher(profile()) is None
    launcher = Plugins(config, entry_points=[install("rented", source)]).launcher(profile())
    assert type(launcher).__name__ == "Rented"


def test_hook_deck_lifespan(config: Config, install: Install) -> None:
    source = """
        import contextlib
        from deck.api import hookimpl

        @hookimpl
        @contextlib.asynccontextmanager
        async def deck_lifespan(services):
            services["seen"].append("start")
            yield
            services["seen"].append("stop")
    """
    plugins = Plugins(config, entry_points=[install("life", source)])
    seen: list[str] = []

    async def live() -> None:
        for context in plugins.lifespans({"seen": seen}):
            async with context:
                assert seen == ["start"]

    asyncio.run(live())
    assert seen == ["start", "stop"]


def test_every_hook_has_a_test() -> None:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    hooks = [name for name in dir(manager.hook) if name.startswith("deck_")]
    missing = [name for name in hooks if f"test_hook_{name}" not in globals()]
    assert hooks
    assert missing == []
