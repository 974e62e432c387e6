import json

import pytest

from weakincentives import serde
from weakincentives.contrib.tools import VfsLimits, VfsToolsSection
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.prompt import Prompt, PromptTemplate, ToolContext, WorkspaceSection
from weakincentives.session import Session


@pytest.fixture(params=["memory", "host"])
def fs(request, tmp_path):
    return InMemoryFilesystem() if request.param == "memory" else HostFilesystem(tmp_path)


def prompt_of(*sections):
    return Prompt(PromptTemplate(ns="tests", key="vfs", sections=sections))


def call(prompt, name, **arguments):
    """Run one tool as the runtime does: arguments as JSON in, result out."""
    (tool,) = (tool for tool in prompt.render().tools if tool.name == name)
    params = serde.decode(tool.params_type, json.dumps(arguments))
    with prompt.resources:
        context = ToolContext(session=Session(), resources=prompt.resources.context, prompt=prompt)
        return tool.handler(params, context=context)


def text(prompt, name, **arguments):
    result = call(prompt, name, **arguments)
    assert result.success, result.message
    return result.render()


def failure(prompt, name, **arguments):
    result = call(prompt, name, **arguments)
    assert not result.success
    return result.message


def test_the_section_offers_seven_tools_and_says_which_only_read():
    tools = prompt_of(VfsToolsSection()).render().tools
    assert {tool.name: tool.read_only for tool in tools} == {
        "ls": True,
        "read": True,
        "glob": True,
        "grep": True,
        "write": False,
        "edit": False,
        "rm": False,
    }


def test_a_read_only_section_offers_no_tool_that_writes():
    rendered = prompt_of(VfsToolsSection(read_only=True)).render()
    assert [tool.name for tool in rendered.tools] == ["ls", "read", "glob", "grep"]
    assert "cannot be changed" in rendered.text
    assert "`rm`" not in rendered.text


def test_every_parameter_is_described_to_the_model():
    for tool in prompt_of(VfsToolsSection()).render().tools:
        for name, schema in tool.schema["properties"].items():
            assert schema.get("description"), (tool.name, name)


def test_a_file_goes_through_all_tools(fs):
    prompt = prompt_of(VfsToolsSection(fs))
    assert text(prompt, "write", path="src/a.py", content="x = 1\ny = 2\n") == "Wrote src/a.py (12 characters)."
    assert text(prompt, "edit", path="src/a.py", old="x = 1", new="x = 3") == "Replaced 1 piece of text in src/a.py."
    assert text(prompt, "read", path="src/a.py") == "x = 3\ny = 2\n"
    assert text(prompt, "ls") == "src/"
    assert text(prompt, "ls", path="src") == "src/a.py (12 bytes)"
    assert text(prompt, "glob", pattern="**/*.py") == "src/a.py"
    assert text(prompt, "grep", pattern="^x") == "src/a.py:1: x = 3"
    assert text(prompt, "rm", path="src", recursive=True) == "Deleted src."
    assert text(prompt, "ls") == "'.' is empty."


def test_nothing_found_is_an_answer_and_not_a_failure(fs):
    prompt = prompt_of(VfsToolsSection(fs))
    assert text(prompt, "glob", pattern="*.rs") == "No file matches '*.rs' below '.'."
    assert "No line matches 'x'" in text(prompt, "grep", pattern="x")
    fs.write("empty", "")
    assert text(prompt, "read", path="empty") == "'empty' is an empty file."


def test_a_long_file_is_read_in_parts(fs):
    fs.write("f", "".join(f"line {n}\n" for n in range(1, 6)))
    prompt = prompt_of(VfsToolsSection(fs, limits=VfsLimits(read_lines=2)))
    assert (
        text(prompt, "read", path="f") == "Lines 1 to 2 of f. More follow: read on with offset=2.\n\nline 1\nline 2\n"
    )
    assert text(prompt, "read", path="f", offset=4) == "Lines 5 to 5 of f.\n\nline 5\n"
    assert "More follow: read on with offset=1" in text(prompt, "read", path="f", limit=1)
    assert failure(prompt, "read", path="f", offset=9) == "offset 9 is past the end: 'f' has 5 lines"


def test_characters_are_limited_at_line_ends_and_within_one_long_line(fs):
    fs.write("f", "123456\n" * 3)
    fs.write("g", "1" * 50 + "\nnext\n")
    prompt = prompt_of(VfsToolsSection(fs, limits=VfsLimits(read_characters=15)))
    assert text(prompt, "read", path="f").endswith("offset=2.\n\n123456\n123456\n")
    assert text(prompt, "read", path="g") == (
        "Line 1 is 51 characters long; its first 15 follow. Read on with offset=1.\n\n" + "1" * 15
    )


def test_listings_and_matches_are_limited(fs):
    for name in "abc":
        fs.write(f"{name}.txt", "x" * 30)
    prompt = prompt_of(VfsToolsSection(fs, limits=VfsLimits(entries=2, matches=2, line_characters=5)))
    assert text(prompt, "ls").startswith("The first 2 of 3 entries; use glob to narrow.\n\na.txt")
    assert text(prompt, "glob", pattern="*").startswith("The first 2 of 3 files; narrow the pattern.\n\na.txt\nb.txt")
    assert text(prompt, "grep", pattern="x") == (
        "The first 2 matches; more follow: narrow the pattern, path or glob.\n\na.txt:1: xxxx…\nb.txt:1: xxxx…"
    )


def test_an_edit_must_hit_exactly_one_place(fs):
    fs.write("f", "if a:\n    go()\nif b:\n    go()\n")
    prompt = prompt_of(VfsToolsSection(fs))
    assert "2 times (lines 2, 4); add the lines around it" in failure(prompt, "edit", path="f", old="go()", new="x")
    assert "'f' (line 2 differs in whitespace only); read the file" in failure(
        prompt, "edit", path="f", old="\tgo()", new="x"
    )
    assert "is not in 'f'; read the file" in failure(prompt, "edit", path="f", old="stop()", new="x")
    assert "'old' must not be empty" in failure(prompt, "edit", path="f", old="", new="x")
    assert "the same text" in failure(prompt, "edit", path="f", old="go()", new="go()")
    assert text(prompt, "edit", path="f", old="go()", new="stop()", replace_all=True).startswith("Replaced 2 pieces")


def test_an_edit_keeps_windows_line_ends(fs):
    fs.write("f", "a\r\nb\r\nc\r\n")
    text(prompt_of(VfsToolsSection(fs)), "edit", path="f", old="a\nb\n", new="x\ny\n")
    assert fs.read("f") == "x\r\ny\r\nc\r\n"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("read", {"path": "src/mian.py"}, "'src/mian.py' does not exist; did you mean 'src/main.py'?"),
        ("read", {"path": "/src/main.py"}, "relative to the root, such as 'src/main.py'"),
        ("read", {"path": "../main.py"}, "contains '..'"),
        ("read", {"path": "src"}, "'src' is a directory; list it instead"),
        ("read", {"path": "blob"}, "'blob' is not UTF-8 text; these tools read and write text only"),
        ("read", {"path": "src/main.py", "limit": 0}, "limit must be 1 or more, got 0"),
        ("ls", {"path": "src/main.py"}, "is a file, not a directory"),
        ("write", {"path": "src/main.py", "content": ""}, "use edit to change it, or mode 'overwrite' to replace it"),
        ("write", {"path": "big", "content": "x" * 101}, "101 characters, more than 100; split it"),
        ("edit", {"path": "src/other.py", "old": "a", "new": "b"}, "'src/other.py' does not exist"),
        ("grep", {"pattern": "("}, "'(' is not a regular expression"),
        ("grep", {"pattern": "x", "limit": 0}, "limit must be 1 or more, got 0"),
        ("glob", {"pattern": "../*"}, "leads out of the root"),
        ("rm", {"path": "src"}, "'src' is not empty; pass recursive=True"),
        ("rm", {"path": "."}, "root cannot be deleted"),
    ],
)
def test_errors_tell_the_model_what_to_do(fs, name, arguments, message):
    fs.write("src/main.py", "x = 1\n")
    fs.write("blob", b"\xff")
    prompt = prompt_of(VfsToolsSection(fs, limits=VfsLimits(write_characters=100)))
    assert message in failure(prompt, name, **arguments)
    assert fs.read("src/main.py") == "x = 1\n"


def test_names_that_are_not_unicode_can_be_shown(tmp_path):
    (tmp_path / "caf\udce9").write_text("x")
    prompt = prompt_of(VfsToolsSection(HostFilesystem(tmp_path)))
    for name, arguments in (("ls", {}), ("glob", {"pattern": "*"}), ("grep", {"pattern": "x"})):
        assert "caf?" in text(prompt, name, **arguments)


@pytest.mark.parametrize("order", [1, -1])
def test_without_a_filesystem_of_its_own_it_uses_that_of_the_workspace(order):
    mine = InMemoryFilesystem({"f": "of the workspace"})
    prompt = prompt_of(*[WorkspaceSection(mine), VfsToolsSection()][::order])
    assert text(prompt, "read", path="f") == "of the workspace"


def test_resources_bound_to_the_prompt_win():
    prompt = prompt_of(VfsToolsSection(InMemoryFilesystem({"f": "section"})))
    prompt.bind(resources={Filesystem: InMemoryFilesystem({"f": "bound"})})
    assert text(prompt, "read", path="f") == "bound"


def test_without_any_filesystem_each_run_has_files_in_memory_of_its_own():
    template = PromptTemplate(ns="t", key="k", sections=[VfsToolsSection()])
    first, second = Prompt(template), Prompt(template)
    with first, second:
        text(first, "write", path="secret", content="of the first run")
        assert text(first, "read", path="secret") == "of the first run"
        assert failure(second, "read", path="secret") == "'secret' does not exist"


def test_a_clone_has_files_of_its_own():
    section = VfsToolsSection(InMemoryFilesystem({"f": "old"}))
    clone = section.clone()
    text(prompt_of(clone), "write", path="f", content="new", mode="overwrite")
    assert (section.filesystem.read("f"), clone.filesystem.read("f")) == ("old", "new")


def test_limits_are_positive():
    with pytest.raises(ValueError, match="matches must be 1 or more, got 0"):
        VfsLimits(matches=0)
