from __future__ import annotations

import logging
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.disclosure.desk import a_tool, answers, tool_names
from tests.rounds import rounds
from tests.skills.folders import BODY, PDF, TRIAGE, read, write
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.prompt import (
    JsonPromptOverridesStore,
    OpenOrRead,
    OpenToFiles,
    Prompt,
    PromptTemplate,
    PromptValidationError,
    Section,
    SectionVisibility,
)
from weakincentives.runtime import Conversation, MainLoop, ledger, run_history
from weakincentives.session import Session, Snapshot
from weakincentives.skills import SkillSection, skill_sections
from weakincentives.telemetry import RunStore, record
from weakincentives.viewer.documents import Documents

READ = call("read_section", section_key="pdf")


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    return write(tmp_path / "skills", PDF | TRIAGE)


def template(*sections: Section[Any], **options: Any) -> PromptTemplate[None]:
    return PromptTemplate(ns="t", key="clerk", sections=sections, **options)


def test_a_skill_shows_its_description_and_opens_to_its_literal_text(skills: Path) -> None:
    prompt = template(*skill_sections(skills))
    assert prompt.render().text.startswith(
        "## 1. PDF forms\n\nFill and read PDF forms. Use it when a ${file} ends in .pdf: costs $5.\n\n---\n"
    )
    opened = prompt.render(visibility_overrides={("pdf",): SectionVisibility.FULL}).text
    assert BODY.removeprefix("# PDF forms\n\n") in opened


def test_other_pages_are_children_with_summaries_of_their_own(skills: Path) -> None:
    pdf, triage = skill_sections(skills)
    assert [(child.key, child.title, child.summary) for child in pdf.children] == [
        ("examples-invoice", "invoice", "One invoice: filled"),
        ("forms", "Forms", "How fields are named: `${name}`."),
    ]
    assert "`references/forms.md` is the subsection `forms`." in pdf.text
    assert (triage.title, triage.children, triage.text.strip()) == ("triage", (), "Sort them.")


def test_front_matter_is_kept_as_data(skills: Path) -> None:
    pdf = skill_sections(skills)[0]
    assert pdf.front_matter["metadata"] == {"author": "example", "version": "1.0"}
    assert pdf.front_matter["allowed-tools"] == "Bash(python:*) Read"


def test_the_model_opens_a_skill_then_its_page_and_reads_its_files(skills: Path) -> None:
    script = [
        READ,
        call("read_section", section_key="pdf.forms"),
        call("read", path="skills/pdf/scripts/fill.py"),
        call("ls", path="skills/pdf/assets"),
        "Filled.",
    ]
    session = Session()
    ScriptedAdapter(script).evaluate(Prompt(template(*skill_sections(skills), VfsToolsSection())), session=session)
    texts = [text for _, text in answers(session)]
    assert "in `skills/pdf/` of the workspace: `LICENSE.txt`, `assets/empty.md`, `scripts/fill.py`." in texts[0]
    assert "Long list." in texts[1]
    assert "print('filled')" in texts[2] and "empty.md" in texts[3]


def test_files_are_copied_only_when_the_skill_is_opened(skills: Path) -> None:
    prompt = template(*skill_sections(skills))
    workspace = InMemoryFilesystem()
    ScriptedAdapter(["Hi."]).evaluate(Prompt(prompt).bind(resources={Filesystem: workspace}), session=Session())
    assert not workspace.exists("skills")
    ScriptedAdapter([READ, "Hi."]).evaluate(Prompt(prompt).bind(resources={Filesystem: workspace}), session=Session())
    assert workspace.glob("**") == (
        "skills/pdf/LICENSE.txt",
        "skills/pdf/assets/empty.md",
        "skills/pdf/scripts/fill.py",
    )


def test_a_skill_that_is_open_from_the_start_has_its_files_from_the_start(skills: Path) -> None:
    prompt, session = Prompt(template(*skill_sections(skills), VfsToolsSection())), Session()
    opened = {("pdf",): SectionVisibility.FULL}
    script = [call("read", path="skills/pdf/scripts/fill.py"), "Read."]
    ScriptedAdapter(script).evaluate(prompt, session=session, visibility_overrides=opened)
    assert "print('filled')" in answers(session)[0][1]


def test_files_that_are_in_the_workspace_already_stay_as_they_are(skills: Path) -> None:
    section = skill_sections(skills / "pdf", mount="skills")[0]
    before = (skills / "pdf/LICENSE.txt").stat().st_mtime_ns
    prompt = Prompt(template(section)).bind(resources={Filesystem: HostFilesystem(skills.parent)})
    ScriptedAdapter([READ, "Hi."]).evaluate(prompt, session=Session())
    assert (skills / "pdf/LICENSE.txt").stat().st_mtime_ns == before


def test_a_skill_gets_typed_tools_that_appear_with_it(skills: Path) -> None:
    sections = skill_sections(skills, tools={"triage": [a_tool("page_someone")]})
    session = Session()
    with ScriptedAdapter([call("read_section", section_key="triage"), call("page_someone"), "Paged."]) as adapter:
        adapter.evaluate(Prompt(template(*sections)), session=session)
    assert tool_names(adapter.requests[0].tools) == ["read_section"]
    assert answers(session)[1] == (True, "page_someone done")


def test_tools_for_a_skill_that_is_not_there_are_refused(skills: Path) -> None:
    with pytest.raises(PromptValidationError, match=r"tools= names no skill of .*: pfd; it has pdf, triage"):
        skill_sections(skills, tools={"pfd": [a_tool("fill")]})


@pytest.mark.parametrize("strategy", [OpenOrRead(), OpenToFiles()])
def test_skills_open_under_other_strategies(skills: Path, strategy: Any) -> None:
    opened = call("open_sections", section_keys=["pdf"], reason="a form")
    session = Session()
    with ScriptedAdapter([opened, call("read", path="skills/pdf/scripts/fill.py"), "Done."]) as adapter:
        prompt = Prompt(template(*skill_sections(skills), VfsToolsSection(), disclosure=strategy))
        MainLoop().execute(prompt, session=session, adapter=adapter)
    assert "print('filled')" in answers(session)[-1][1]


def test_overrides_replace_the_literal_text(skills: Path, tmp_path: Path) -> None:
    prompt = template(*skill_sections(skills))
    store, descriptor = JsonPromptOverridesStore(tmp_path / "overrides"), prompt.descriptor
    words = descriptor.override_section(("triage",), "Ask ${nobody}; it is $0.")
    store.upsert(descriptor.new_override("latest").with_section(("triage",), words))
    session = Session()
    tuned = Prompt(prompt, overrides_store=store)
    ScriptedAdapter([call("read_section", section_key="triage"), "Ok."]).evaluate(tuned, session=session)
    assert "Ask ${nobody}; it is $0." in answers(session)[0][1]


def test_a_run_is_explained_priced_and_recorded_by_section(skills: Path, tmp_path: Path) -> None:
    prompt = template(*skill_sections(skills), show_prices=True)
    explanation = ScriptedAdapter().explain(Prompt(prompt))
    assert [section.opening.partition(",")[0] for section in explanation.sections if section.opening] == [
        "opens it",
        "content only",
    ]
    session, bound = Session(), Prompt(prompt)
    with record(tmp_path / "runs.db"):
        run = ScriptedAdapter([READ, "Filled."]).evaluate(bound, session=session)
    assert (run.text, ledger(session).turns) == ("Filled.", 2)
    seen = {section.key: section.seen for section in run_history(session).now.sections}
    assert seen["pdf"] == "conversation" and seen["triage"] == "summary"
    with RunStore(tmp_path / "runs.db") as store:
        steps = Documents(store).run(run.run_id)["steps"]
    assert [step["sections"] for step in steps] == [["pdf"]]


def test_a_conversation_goes_on_elsewhere_with_the_skill_open(skills: Path) -> None:
    def prompt() -> Prompt[None]:
        return Prompt(template(*skill_sections(skills, tools={"pdf": [a_tool("fill")]}), VfsToolsSection()))

    chat = Conversation(prompt(), adapter=ScriptedAdapter([READ, "Read."]))
    chat.send("Read it.")
    session = Session()
    session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
    script = [call("fill"), call("read", path="skills/pdf/scripts/fill.py"), "Filled."]
    later = Conversation(prompt(), adapter=ScriptedAdapter(script), session=session)
    assert later.send("Fill it.").text == "Filled."
    assert [success for success, _ in answers(session)] == [True, True, True]


def test_a_clone_is_a_skill_of_its_own(skills: Path) -> None:
    copy = skill_sections(skills)[0].clone()
    assert isinstance(copy, SkillSection) and copy.files == ("LICENSE.txt", "assets/empty.md", "scripts/fill.py")


def test_a_folder_without_skills_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptValidationError, match=r"has no skills; pass a folder of folders with a SKILL.md"):
        skill_sections(tmp_path)


def test_a_broken_rule_names_file_and_rule_unless_not_strict(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, {"a/SKILL.md": "---\nname: b\ndescription: Does.\nargument-hint: x\n---\nText."})
    with pytest.raises(PromptValidationError, match=r"a/SKILL.md': name must be that of its folder, 'a', got 'b'"):
        skill_sections(tmp_path)
    with caplog.at_level(logging.WARNING):
        (section,) = skill_sections(tmp_path, strict=False)
    assert (section.key, len(caplog.records)) == ("a", 2)


def test_a_skill_that_the_model_may_not_invoke_is_left_out(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"a/SKILL.md": "---\nname: a\ndescription: Does.\ndisable-model-invocation: true\n---\nText."} | TRIAGE,
    )
    assert [section.key for section in skill_sections(tmp_path, strict=False)] == ["triage"]


def test_links_that_leave_a_skill_are_refused(skills: Path) -> None:
    (skills / "pdf" / "scripts" / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(PromptValidationError, match="passwd' is a symbolic link that leads out of"):
        skill_sections(skills)


PAGES = [
    {"reference.md": "reference", "forms.md": "forms"},
    {"reference.md": "reference", "reference/a.md": "reference-a", "a.md": "a"},
    {"reference/a.md": "a", "references/a.md": "references-a"},
    {"README.md": "readme-b3356305", "readme.md": "readme", "pdf.md": "pdf"},
    {"a b.md": "a-b-10ad72d8", "a-b.md": "a-b", "a_b.md": "a_b"},
    {"使い方.md": "page-74d6ac78", "skill.md": "skill"},
]


@pytest.mark.parametrize("keys", PAGES, ids=str)
def test_pages_may_have_any_names(tmp_path: Path, keys: dict[str, str]) -> None:
    texts = {f"pdf/{name}": f"# Title\n\nText of {name}." for name in keys}
    (pdf,) = skill_sections(write(tmp_path, {"pdf/SKILL.md": PDF["pdf/SKILL.md"], **texts}))
    assert {text_of(child): child.key for child in pdf.children} == {f"Text of {name}.": keys[name] for name in keys}


LETTERS = ["a", "b", "A", "ä", "-", "_", ".", " ", "é", "使", "`", "$", "1"]
FOLDERS = ["", "references/", "reference/", "Reference/", "references/reference/", "docs/", "pdf/", "使/"]
SPECIAL = ["reference.md", "references.md", "README.md", "readme.md", "skill.md", "pdf.md", "index.md", "forms.MD"]


@pytest.mark.parametrize("seed", range(rounds(15, 100)))
def test_a_skill_loads_with_any_files_and_every_page_has_a_key_of_its_own(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    names = set(drawn.sample(SPECIAL, 3))
    for _ in range(drawn.randint(1, 12)):
        stem = "".join(drawn.choices(LETTERS, k=drawn.choice([1, 1, 2, 2, 3, 80]))).strip(". ") or "x"
        names.add(drawn.choice(FOLDERS) + stem + drawn.choice([".md", ".markdown"]))
    write(tmp_path, {**PDF, **{f"pdf/{name}": f"# Title\n\nText <{name}>." for name in names}})
    (pdf,) = skill_sections(tmp_path)
    assert template(pdf).sections == (pdf,)
    pages = {re.search("<(.*)>", text_of(child))[1]: child.key for child in pdf.children if "<" in text_of(child)}  # type: ignore[index]
    assert {*pages} == names
    assert len({child.key for child in pdf.children}) == len(pdf.children)
    # Neither another file, which gets a key of its own, nor the place of the folder changes a key.
    write(
        tmp_path / "copy",
        {f"pdf/{path}": text for path, text in read(tmp_path / "pdf").items()} | {"pdf/zz/z.md": "Z."},
    )
    (copied,) = skill_sections(tmp_path / "copy")
    assert {child.key for child in copied.children} == {*(child.key for child in pdf.children), "zz-z"}


def text_of(section: Section[Any]) -> str:
    text = section.body_text()
    assert text is not None
    return text.literals[0]
