"""The manifests in `deploy/` are valid, and their commands are those of the program."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from weakincentives.cli.commands import parser

DEPLOY = Path(__file__).parents[2] / "deploy"


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return found


def test_the_manifests_fit_the_schema_of_kubernetes() -> None:
    try:
        import kubernetes_validate
    except ImportError:
        pytest.skip("needs kubernetes-validate: pip install 'weakincentives[test-full]'")
    for manifest in manifests():
        kubernetes_validate.validate(manifest, "1.37", strict=True)
    wrong = manifests()[0]
    wrong["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def test_the_commands_of_both_files_are_those_of_the_program() -> None:
    pods = [each["spec"]["template"]["spec"] for each in manifests() if each["kind"] == "Deployment"]
    commands = [container["command"] for pod in pods for container in pod["containers"]]
    commands += [service["command"] for service in services().values() if "command" in service]
    workers = [command for command in commands if command[0] == "wink"]
    assert len(workers) == 2
    for _, name, *arguments in workers:
        parsed = parser(name).parse_args(arguments)
        assert (parsed.loop, parsed.health[1]) == ("examples.web_fleet:chats", 8080)


def test_the_image_has_the_example_and_the_extras_but_not_the_whole_folder() -> None:
    lines = [line.split() for line in (DEPLOY / "Dockerfile").read_text().splitlines()]
    copied = [name for word, *names in filter(None, lines) if word == "COPY" for name in names[:-1]]
    assert {"src", "examples", "pyproject.toml"} <= set(copied)
    assert all((DEPLOY.parent / name).exists() and name != "." for name in copied)
    (extras,) = [word for line in lines if "pip" in line for word in line if word.startswith("'.[")]
    declared = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras[3:-2].split(",")) <= declared.keys()


def test_a_worker_may_drain_before_it_is_killed() -> None:
    worker = manifests()[0]["spec"]["template"]["spec"]
    command = worker["containers"][0]["command"]
    drain = float(command[command.index("--drain") + 1])
    assert worker["terminationGracePeriodSeconds"] > drain
    assert float(services()["worker"]["stop_grace_period"].removesuffix("s")) > drain
