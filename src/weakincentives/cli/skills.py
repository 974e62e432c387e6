"""Check skill folders, and install the skill that teaches coding agents to build with this library."""

from __future__ import annotations

import argparse
import shutil

from weakincentives.cli.output import print_error, print_json, print_line


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True)
    install = verbs.add_parser("install", help="copy the skill building-with-weakincentives into a folder of skills")
    install.add_argument("folder", nargs="?", default=".claude/skills", help="where to (default: .claude/skills)")
    check = verbs.add_parser("check", help="which rules of the Agent Skills specification are broken")
    check.add_argument("folder", help="a skill, or a folder of skills")
    check.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from weakincentives.skills import BUNDLED, skill_folders, validate_skill

    if arguments.verb == "install":
        shutil.copytree(BUNDLED, arguments.folder, dirs_exist_ok=True)
        print_line("\n".join(f"{arguments.folder}/{skill.name}" for skill in skill_folders(BUNDLED)))
        return 0
    problems = [problem for skill in skill_folders(arguments.folder) for problem in validate_skill(skill)]
    if arguments.json:
        print_json(problems)
    for problem in () if arguments.json else problems:
        print_error(problem)
    return 1 if problems else 0
