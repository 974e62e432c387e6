"""Sections of literal text: `TextSection`, and folders of markdown files."""

from __future__ import annotations

from pathlib import Path

import pytest

from weakincentives.prompt import (
    JsonPromptOverridesStore,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    PromptValidationError,
    SectionVisibility,
    TextSection,
    markdown_sections,
)

NASTY = "Run $HOME/bin, pay $5, fill ${id} and {{name}}; $$ stays.\n\n```sh\n# no heading\necho ${PATH}\n```"


def files(folder: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def handbook(folder: Path, *, headings: bool = False) -> PromptTemplate[None]:
    return PromptTemplate(ns="t", key="book", sections=markdown_sections(folder, headings=headings))


def keys(template: PromptTemplate[None]) -> list[str]:
    return [span.key for span in template.outline.nodes]


def test_text_and_summary_are_taken_literally() -> None:
    section = TextSection(
        key="a", title="A", text=NASTY, summary="Costs ${5} $x.", visibility=SectionVisibility.SUMMARY
    )
    template = PromptTemplate(ns="t", key="t", sections=[section])
    assert template.render().text.startswith("## 1. A\n\nCosts ${5} $x.\n\n---\n")
    opened = template.render(visibility_overrides={("a",): SectionVisibility.FULL})
    assert opened.text == f"## 1. A\n\n{NASTY}"


def test_an_override_of_literal_text_is_literal_too(tmp_path: Path) -> None:
    template = PromptTemplate(ns="t", key="t", sections=[TextSection(key="a", title="A", text="Pay $5.")])
    store, descriptor = JsonPromptOverridesStore(tmp_path), template.descriptor
    words = descriptor.override_section(("a",), "Pay ${more} $.")
    store.upsert(descriptor.new_override("latest").with_section(("a",), words))
    assert Prompt(template, overrides_store=store).render().text == "## 1. A\n\nPay ${more} $."


def test_an_override_written_for_a_template_does_not_fit_the_same_text_taken_literally() -> None:
    literal, filled = (
        PromptTemplate(ns="t", key="t", sections=[section]).descriptor.sections[("a",)].content_hash
        for section in (
            TextSection(key="a", title="A", text="Pay $$5."),
            MarkdownSection(key="a", title="A", template="Pay $$5."),
        )
    )
    assert literal != filled


def test_a_page_has_its_heading_as_title_and_its_first_paragraph_as_summary(tmp_path: Path) -> None:
    page = "# Care\n\n![logo](x.png)\n\nWash it\nby hand.\n\nThe handle gets hot."
    (section,) = markdown_sections(files(tmp_path, {"care-guide.md": page}))
    assert (section.key, section.title, section.summary) == ("care-guide", "Care", "Wash it by hand.")
    assert section.text == "![logo](x.png)\n\nWash it\nby hand.\n\nThe handle gets hot."


def test_front_matter_gives_title_and_summary(tmp_path: Path) -> None:
    page = '---\ntitle: "Care: by hand"\nsummary: >\n  How to wash\n  a $5 pot.\ntags: [a, b]\n---\n\nText.\n'
    (section,) = markdown_sections(files(tmp_path, {"care.md": page}))
    assert (section.title, section.summary, section.text) == ("Care: by hand", "How to wash a $5 pot.", "Text.")


def test_a_page_without_prose_is_summarized_by_its_title(tmp_path: Path) -> None:
    (section,) = markdown_sections(files(tmp_path, {"api_list.md": "```\ncode\n```\n"}))
    assert (section.title, section.summary) == ("Api list", "Api list")


def test_a_long_first_paragraph_is_cut_at_a_word(tmp_path: Path) -> None:
    (section,) = markdown_sections(files(tmp_path, {"a.md": "word " * 100}))
    assert section.summary is not None and section.summary.endswith("word ...") and len(section.summary) <= 304


def test_subfolders_are_parents_with_their_index_as_text(tmp_path: Path) -> None:
    contents = {
        "billing/README.md": "# Money\n\nAll about money.",
        "billing/refunds.md": "Within 14 days.",
        "empty/picture.png": "",
        "legal/terms.md": "# Terms\n\nLong.",
        ".git/notes.md": "hidden",
    }
    template = handbook(files(tmp_path, contents))
    assert keys(template) == ["billing", "billing.refunds", "legal", "legal.terms"]
    assert [(section.title, section.summary) for section in template.sections] == [
        ("Money", "All about money."),
        ("Legal", "Terms"),
    ]


def test_headings_become_children_on_request(tmp_path: Path) -> None:
    page = f"# Guide\n\nIntro.\n\n## Set up\n\n{NASTY}\n\n### On Linux\n\nEasy.\n\n## Use\n\n## Use\n\nAgain."
    folder = files(tmp_path, {"guide.md": page})
    assert keys(handbook(folder)) == ["guide"]
    template = handbook(folder, headings=True)
    assert keys(template) == ["guide", "guide.set-up", "guide.set-up.on-linux", "guide.use", "guide.use-2"]
    guide = template.sections[0]
    assert isinstance(guide, TextSection)
    assert (guide.text, guide.summary) == ("Intro.", "Intro.")
    set_up = guide.children[0]
    assert isinstance(set_up, TextSection) and set_up.text == NASTY
    assert set_up.summary == "Run $HOME/bin, pay $5, fill ${id} and {{name}}; $$ stays."


def test_instructions_for_agents_are_shown_in_full(tmp_path: Path) -> None:
    folder = files(tmp_path, {"AGENTS.md": "# Rules\n\nRun `make`.", "guide.md": "Long."})
    assert handbook(folder).render().text.startswith("## 1. Rules\n\nRun `make`.\n\n## 2. Guide\n\nLong.\n\n---")
    assert [section.key for section in markdown_sections(folder / "AGENTS.md")] == ["agents"]


def test_windows_line_ends_and_byte_order_marks_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"\xef\xbb\xbf---\r\nsummary: Short\r\n---\r\n# A\r\n\r\nOne.\r\nTwo.")
    (section,) = markdown_sections(tmp_path)
    assert (section.title, section.summary, section.text) == ("A", "Short", "One.\nTwo.")


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        ({"Set-Up.md": "a", "set up.md": "b"}, r"Set-Up.md' and '.*set up.md' would both be the section 'set-up'"),
        ({"billing.md": "a", "billing/x.md": "b"}, r"billing' and '.*billing.md' would both be the section 'billing'"),
        ({"日本.md": "a"}, "'.*日本.md' does not yield a section key; rename it"),
        ({"a.txt": "a"}, r"has no markdown files"),
        ({"a.md": "---\nsummary: one: two\n---\n"}, r"a.md', line 2, front matter: mapping values are not allowed"),
    ],
)
def test_what_cannot_be_a_section_is_named(tmp_path: Path, contents: dict[str, str], problem: str) -> None:
    with pytest.raises(PromptValidationError, match=problem):
        markdown_sections(files(tmp_path, contents))


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.md").write_bytes("Grüße".encode("latin-1"))
    with pytest.raises(PromptValidationError, match=r"latin.md' is not UTF-8 text \(byte 2\); save it as UTF-8"):
        markdown_sections(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptValidationError, match="nowhere' cannot be read: No such file or directory"):
        markdown_sections(tmp_path / "nowhere")


def test_links_within_the_folder_are_followed_and_others_refused(tmp_path: Path) -> None:
    book = files(tmp_path / "book", {"a.md": "One."})
    (book / "b.md").symlink_to("a.md")
    assert [section.key for section in markdown_sections(book)] == ["a", "b"]
    files(tmp_path, {"secret.md": "Secret."})
    (book / "c.md").symlink_to("../secret.md")
    with pytest.raises(PromptValidationError, match=r"c.md' is a symbolic link that leads out of '.*book'"):
        markdown_sections(book)


def test_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    book = files(tmp_path, {"sub/a.md": "One."})
    (book / "sub" / "again").symlink_to(book / "sub")
    assert keys(handbook(book)) == ["sub", "sub.a"]
