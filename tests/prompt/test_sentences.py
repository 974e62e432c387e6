from __future__ import annotations

from weakincentives.prompt.disclosure.ranking import bm25, sentences


def test_prose_is_cut_at_sentences_and_wrapped_lines_are_joined() -> None:
    assert sentences("# Title\n\nFirst one costs 4.90 euros. Second\nline.") == [
        "First one costs 4.90 euros.",
        "Second line.",
    ]


def test_table_rows_carry_their_headers() -> None:
    assert sentences("| plant | days |\n|---|---|\n| basil | 5 |\n| mint | 7 |") == [
        "plant: basil; days: 5",
        "plant: mint; days: 7",
    ]


def test_list_items_stand_by_themselves() -> None:
    assert sentences("Steps:\n- Unplug it.\n- Wait.\n2. Start.") == ["Steps:", "Unplug it.", "Wait.", "Start."]


def test_our_own_notes_are_left_out() -> None:
    assert sentences("Text.\n\n[Tools now available: lookup.]\n\n---\n[This section is summarized. Read it.]") == [
        "Text."
    ]
    lead = "[A section that ends with its key in brackets is summarized. To view full content, call `x` with its key.]"
    assert sentences(f"Text.\n\n{lead}") == ["Text."]
    notes = "`more.md` is the subsection `more`.\nFiles of this skill, in `skills/pack/` of the workspace: `a.py`."
    assert sentences(f"Pack it.\n\n{notes}") == ["Pack it."]


def test_rare_shared_words_count_most() -> None:
    scores = bm25("pump noise", ["The pump hums.", "The pump makes noise.", "Delivery times."])
    assert scores[1] > scores[0] > scores[2] == 0
