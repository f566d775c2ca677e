"""The files in docs/deploy against each other, and against what Deck itself has."""

from __future__ import annotations

import re
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from deck.admin import PUBLIC
from deck.config import Config, load_config
from deck.profile import Hooks, Profile, load_profile

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "docs" / "deploy"
KUBERNETES = DEPLOY / "kubernetes"


def documents() -> list[dict[str, Any]]:
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))
    found = []
    for name in kustomization["resources"]:
        found += list(yaml.safe_load_all((KUBERNETES / name).read_text(encoding="utf-8")))
    return found


def one(kind: str, name: str) -> dict[str, Any]:
    [found] = [item for item in documents() if item["kind"] == kind and item["metadata"]["name"] == name]
    return dict(found)


def pod(kind: str, name: str) -> dict[str, Any]:
    return dict(one(kind, name)["spec"]["template"]["spec"])


def container(kind: str, name: str) -> dict[str, Any]:
    return dict(pod(kind, name)["containers"][0])


def flags(arguments: list[str]) -> dict[str, str]:
    return dict(item.removeprefix("--").partition("=")[::2] for item in arguments)


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config(KUBERNETES / "deck.toml", {})


def chat(directory: Path) -> Profile:
    return load_profile(directory / "chat.toml", {})


def variables(spec: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {item["name"]: item["valueFrom"]["secretKeyRef"] for item in spec["env"]}


def test_every_file_is_part_of_the_whole() -> None:
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))
    named = {*kustomization["resources"], "kustomization.yaml"}
    for generated in kustomization["configMapGenerator"]:
        named.update(generated["files"])
    assert named == {path.name for path in KUBERNETES.iterdir()}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_kustomize_builds_it() -> None:
    ran = subprocess.run(["kubectl", "kustomize", str(KUBERNETES)], capture_output=True, text=True, check=False)
    if "unknown command" in ran.stderr:
        pytest.skip("this kubectl has no kustomize")
    assert ran.returncode == 0, ran.stderr
    built = list(yaml.safe_load_all(ran.stdout))
    assert {item["metadata"].get("namespace", "deck") for item in built} == {"deck"}
    maps = {item["metadata"]["name"] for item in built if item["kind"] == "ConfigMap"}
    [deck] = [item for item in built if item["kind"] == "Deployment"]
    mounted = {item["configMap"]["name"] for item in deck["spec"]["template"]["spec"]["volumes"] if "configMap" in item}
    assert mounted == maps


def test_deck_listens_where_it_is_asked(config: Config) -> None:
    deck = container("Deployment", "deck")
    assert config.host == "0.0.0.0"
    assert deck["ports"] == [{"name": "http", "containerPort": config.port}]
    assert one("Service", "deck")["spec"]["ports"][0]["targetPort"] == "http"
    assert one("NetworkPolicy", "deck")["spec"]["ingress"][0]["ports"][0]["port"] == config.port
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = deck[probe]["httpGet"]
        assert ("GET", asked["path"]) in PUBLIC, "a probe has no token"
        assert asked["port"] == "http"


def test_deck_has_time_to_drain(config: Config) -> None:
    wait = container("Deployment", "deck")["lifecycle"]["preStop"]["exec"]["command"]
    assert wait[0] == "sleep"
    needed = int(wait[1]) + config.drain + config.stop_grace + 5
    assert pod("Deployment", "deck")["terminationGracePeriodSeconds"] >= needed


def test_services_put_nothing_into_the_environment() -> None:
    """DECK_PORT of a Service named deck would be Deck's port."""
    for kind, name in (("Deployment", "deck"), ("StatefulSet", "llama")):
        assert pod(kind, name)["enableServiceLinks"] is False


def test_the_profile_names_every_pod_as_it_is(config: Config) -> None:
    profile, service, pods = chat(KUBERNETES), one("Service", "llama"), one("StatefulSet", "llama")
    port = flags(container("StatefulSet", "llama")["args"])["port"]
    name = f"{service['metadata']['name']}:{port}"
    assert profile.server.urls == tuple(f"http://llama-{number}.{name}" for number in range(pods["spec"]["replicas"]))
    assert pods["spec"]["serviceName"] == service["metadata"]["name"]
    assert pods["metadata"]["name"] == "llama"
    assert service["spec"]["clusterIP"] == "None"
    assert [item["containerPort"] for item in container("StatefulSet", "llama")["ports"]] == [int(port)]
    assert one("NetworkPolicy", "llama")["spec"]["ingress"][0]["ports"][0]["port"] == int(port)


def test_the_slots_are_those_of_the_servers() -> None:
    given = flags(container("StatefulSet", "llama")["args"])
    assert chat(KUBERNETES).server.parallel == int(given["parallel"])
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    given = flags(compose["services"]["llama-a"]["command"])
    profile = chat(DEPLOY / "compose")
    assert profile.server.parallel == int(given["parallel"])
    servers = [name for name in compose["services"] if name != "deck"]
    assert profile.server.urls == tuple(f"http://{name}:{given['port']}" for name in servers)
    assert profile.server.api_key_env in compose["services"]["deck"]["environment"]


def test_both_sides_have_the_same_key() -> None:
    deck = variables(container("Deployment", "deck"))
    llama = variables(container("StatefulSet", "llama"))
    assert llama["LLAMA_API_KEY"] == deck[str(chat(KUBERNETES).server.api_key_env)]


def test_tokens_are_one_secret_for_all(config: Config) -> None:
    spec = pod("Deployment", "deck")
    [source, link] = spec["initContainers"][0]["command"][-2:]
    assert link == str(config.state / "tokens.json")
    mounts = {item["name"]: item["mountPath"] for item in spec["containers"][0]["volumeMounts"]}
    assert source == f"{mounts['tokens']}/tokens.json"
    assert mounts["state"] == str(config.state)
    assert [Path(mounts["profiles"])] == list(config.profiles)
    assert f"--config {mounts['config']}" in " ".join(spec["containers"][0]["args"])


@pytest.mark.parametrize(("kind", "name"), [("Deployment", "deck"), ("StatefulSet", "llama")])
def test_pods_are_locked_down_and_bounded(kind: str, name: str) -> None:
    spec = pod(kind, name)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    for item in (*spec["containers"], *spec.get("initContainers", ())):
        assert item["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in item["resources"]["limits"]
    for volume in spec["volumes"]:
        assert "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"]
    labels = one(kind, name)["spec"]["template"]["metadata"]["labels"]
    assert one(kind, name)["spec"]["selector"]["matchLabels"] == labels
    assert one("Service", name)["spec"]["selector"] == labels
    assert one("PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"] == labels


def test_a_model_has_time_to_load() -> None:
    probe = container("StatefulSet", "llama")["startupProbe"]
    assert probe["httpGet"]["path"] == "/health"
    assert probe["periodSeconds"] * probe["failureThreshold"] >= chat(KUBERNETES).server.load_timeout


def test_deck_knows_every_variable_it_is_given() -> None:
    files = [path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".md"]
    named = {name for path in files for name in re.findall(r"\bDECK_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8"))}
    assert {"DECK_TOKEN", "DECK_STATE"} <= named
    values = {"DECK_PORT": "1"}
    assert load_config(None, {name: values.get(name, "info") for name in named - {"DECK_CONFIG"}}).warnings == ()


def test_containers_and_units_let_it_drain() -> None:
    needed = Config().drain + Config().stop_grace + 5
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert int(compose["services"]["deck"]["stop_grace_period"].removesuffix("s")) >= needed
    unit = (DEPLOY / "deck.service").read_text(encoding="utf-8")
    found = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert found is not None
    assert int(found[1]) >= needed


def test_what_more_than_that_they_must_let_it_is_said() -> None:
    said = " ".join((DEPLOY / "README.md").read_text(encoding="utf-8").split())
    assert f"an `on_stop` hook ({Hooks().timeout:g} seconds)" in said
    assert "30 seconds if one has `save_slots`" in said


def test_docker_gets_what_the_package_is_made_of_and_no_more() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    left_out = {line for line in lines if line and not line.startswith(("#", "!"))}
    assert {".git", ".venv", ".deck", "build", "**/node_modules", "**/__pycache__", "**/.*_cache"} <= left_out
    for needed in ("pyproject.toml", "README.md", "LICENSE", "deck", "plugins", "profiles"):
        assert (ROOT / needed).exists()
        assert not any(fnmatch(needed, line.removeprefix("**/")) for line in left_out)
    models = [str(path.relative_to(ROOT)) for path in (ROOT / "profiles").rglob("*.gguf")]
    assert models
    assert "!profiles/**/*.gguf" in lines[lines.index("**/*.gguf") :]


def test_the_command_for_docker_fits_the_dockerfile() -> None:
    assert 'ENTRYPOINT ["deck"]' in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    said = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert re.findall(r"^ +your-image (.+)$", said, re.MULTILINE) == ["serve"]


def test_the_composed_port_is_deck_s_own() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert compose["services"]["deck"]["ports"] == [f"127.0.0.1:{Config().port}:{Config().port}"]
    assert f"EXPOSE {Config().port}" in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_knows_every_line_of_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "deck.service").read_text(encoding="utf-8").replace("/opt/deck/bin/deck", "/bin/true")
    unit = tmp_path / "deck.service"
    unit.write_text(text, encoding="utf-8")
    ran = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    ours = [line for line in ran.stderr.splitlines() if "deck.service" in line]
    assert ours == []
