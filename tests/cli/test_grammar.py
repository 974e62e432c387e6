import argparse

from weakincentives.cli.commands import parsers
from weakincentives.cli.completion import Argument, Grammar, grammar


def test_a_parser_is_read_with_its_options_positionals_and_commands() -> None:
    parser = argparse.ArgumentParser(prog="wink x")
    parser.add_argument("target", help="what")
    verbs = parser.add_subparsers()
    verbs.add_parser("list", help="all").add_argument("--json", action="store_true", help="as JSON")
    assert grammar(parser, "do x") == Grammar(
        "wink x",
        "do x",
        (Argument((), "TARGET", "what", required=True),),
        (Grammar("wink x target list", "all", (Argument(("--json",), "", "as JSON"),)),),
    )


def test_every_option_of_every_command_is_explained() -> None:
    def unexplained(command: Grammar) -> list[str]:
        own = [
            f"{command.name} {argument.flags or argument.value}" for argument in command.arguments if not argument.help
        ]
        return own + [name for child in command.commands for name in unexplained(child)]

    assert [name for _, parser in parsers() for name in unexplained(grammar(parser, ""))] == []


def test_every_command_that_reads_has_json() -> None:
    def without_json(command: Grammar) -> list[str]:
        if command.commands:
            return [name for child in command.commands for name in without_json(child)]
        has = any("--json" in argument.flags or "--jsonl" in argument.flags for argument in command.arguments)
        return [] if has else [command.name]

    acting = {
        "wink overrides edit",
        "wink play",
        "wink view",
        "wink worker",
        "wink completion",
        "wink chat",
        "wink init",
        "wink skills install",
        "wink mcp serve",
        "wink mcp lock",
        "wink model get",
        "wink model remove",
        "wink fork",
        "wink export",
        "wink eval cases",
    }
    assert {name for _, parser in parsers() for name in without_json(grammar(parser, ""))} <= acting
