"""The encoder of the ranker: its tokenizer, its vectors, and what is kept of them."""

from __future__ import annotations

import json
import logging
import math
import struct
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies

from tests.helpers.embedded import require_quotation
from weakincentives.adapters.local.embedding import Embedder, Encoded
from weakincentives.adapters.local.published import package_folder, published_embedder
from weakincentives.adapters.local.wordpiece import WordPieces

require_quotation()
np = pytest.importorskip("numpy")
encoder = pytest.importorskip("weakincentives.adapters.local.encoder")
meaning = pytest.importorskip("weakincentives.adapters.local.meaning")

QUESTION = "Where is my parcel?"
RULE = "Refunds: Money comes back within 14 days, to the account that paid (PayPal, card or Überweisung)."
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "pump", "##s", "a", "##n", ".", "中")


@pytest.mark.parametrize(
    ("tuned", "text", "beginning"),
    [
        (False, QUESTION, [0.0339, -0.0141, 0.0437, -0.024, 0.0603, 0.0127]),
        (False, RULE, [-0.0146, 0.0603, 0.0689, 0.0422, -0.0052, 0.0198]),
        (True, QUESTION, [0.0578, -0.0201, -0.0412, -0.0387, 0.0603, 0.014]),
        (True, RULE, [0.0084, 0.0349, 0.045, 0.0602, -0.0112, 0.0094]),
    ],
)
def test_vectors_are_those_that_llama_cpp_computes(tuned: bool, text: str, beginning: list[float]) -> None:
    (vector,) = published_embedder("A test", tuned=tuned, threads=1).vectors([text])
    assert list(vector[:6]) == pytest.approx(beginning, abs=3e-4)
    assert math.hypot(*vector) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_vector_of_a_text_does_not_depend_on_the_texts_beside_it(threads: int) -> None:
    embedder = published_embedder("A test", tuned=True, threads=threads)
    texts = [
        QUESTION,
        "word " * 2000,
        *(f"Item {number} costs {number} euros. " * (number % 7) for number in range(90)),
    ]
    together = embedder.vectors(texts)
    for position in (0, 1, 5, 91):
        (alone,) = embedder.vectors([texts[position]])
        assert list(together[position]) == pytest.approx(list(alone), abs=1e-5)


def test_of_a_text_longer_than_the_model_reads_its_beginning_counts() -> None:
    embedder = published_embedder("A test", tuned=False, threads=1)
    text = "".join(f"Item {number} costs {number} euros. " for number in range(200))
    whole, longer, beginning = embedder.vectors([text, text + "The end.", text[:510]])
    assert list(whole) == list(longer)
    assert float(np.dot(whole, beginning)) < 0.999


def test_progress_ends_with_all_tokens() -> None:
    batches = list(published_embedder("A test", tuned=False, threads=2).encode(["A long text. " * 50] * 12))
    assert len(batches) > 1
    assert [batch.total for batch in batches] == [batches[-1].tokens] * len(batches)


@given(strategies.text(strategies.characters(max_codepoint=0x5FF, exclude_categories=["Cn"], exclude_characters="[")))
def test_pieces_are_those_of_the_published_tokenizer(text: str) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra [finding]")
    folder = package_folder()
    assert folder is not None
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    reference.no_padding()
    reference.no_truncation()
    pieces = WordPieces((folder / "vocab.txt").read_text(encoding="utf-8").split("\n"))
    assert pieces.numbers(text, 10_000) == reference.encode(text).ids


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("Pumps", [2, 4, 5, 3]),
        ("Ã pump.", [2, 6, 4, 8, 3]),
        ("pumping an", [2, 1, 6, 7, 3]),
        ("a中a", [2, 6, 9, 6, 3]),
        ("pump " * 9, [2, 4, 4, 4, 4, 3]),
        ("", [2, 3]),
        ("[SEP]", [2, 1, 1, 1, 3]),
    ],
)
def test_words_are_cut_into_the_longest_pieces(text: str, numbers: list[int]) -> None:
    assert WordPieces(VOCABULARY).numbers(text, 6) == numbers


@pytest.mark.parametrize(("letter", "kind"), [("f", "F32"), ("e", "F16")])
def test_tensors_are_read_by_name_in_both_kinds_of_numbers(tmp_path: Path, letter: str, kind: str) -> None:
    numbers = struct.pack(f"<6{letter}", *range(6))
    header = {"__metadata__": {"origin": "a test"}, "places": {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]}}
    header["weight"] = {"dtype": kind, "shape": [2, 3], "data_offsets": [0, len(numbers)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (tmp_path / "t.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + numbers)
    tensors = encoder.read_tensors(tmp_path / "t.safetensors")
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {"weight": [[0, 1, 2], [3, 4, 5]]}


def counting_embedder(texts_read: list[str], stop_after: int = 99) -> Embedder:
    """Embeds a text as its length, one text at a time."""

    def encode(texts: Sequence[str]) -> Generator[Encoded, None, None]:
        for position, text in enumerate(texts):
            if len(texts_read) == stop_after:
                raise KeyboardInterrupt
            texts_read.append(text)
            yield Encoded([position], [[0.5, float(len(text))]], position + 1, len(texts))

    return Embedder("counting", "1", encode)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_vectors_are_computed_once_and_kept_on_disk(cache: Path) -> None:
    texts_read: list[str] = []
    first = meaning.StoredVectors(counting_embedder(texts_read)).of(["a", "bb", "a"])
    again = meaning.StoredVectors(counting_embedder(texts_read)).of(["bb"])
    assert first.tolist() == [[0.5, 1], [0.5, 2], [0.5, 1]]
    assert again.tolist() == [[0.5, 2]] and texts_read == ["a", "bb"]


def test_what_was_computed_before_an_interruption_is_kept(cache: Path) -> None:
    texts_read: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        meaning.StoredVectors(counting_embedder(texts_read, stop_after=2)).of(["a", "bb", "ccc"])
    meaning.StoredVectors(counting_embedder(texts_read)).of(["a", "bb", "ccc"])
    assert texts_read == ["a", "bb", "ccc"]


def is_no_folder(cache: Path) -> None:
    cache.touch()


def has_a_broken_database(cache: Path) -> None:
    cache.mkdir()
    (cache / "counting-1.sqlite").write_text("This is no database. " * 100, encoding="utf-8")


@pytest.mark.parametrize("hindrance", [is_no_folder, has_a_broken_database])
def test_where_nothing_can_be_kept_vectors_are_computed_with_a_warning(
    cache: Path, hindrance: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    hindrance(cache)
    vectors = meaning.StoredVectors(counting_embedder([]))
    with caplog.at_level(logging.WARNING):
        assert vectors.of(["a"]).tolist() == [[0.5, 1]]
        vectors.of(["bb"])
    assert len(caplog.records) == 1
    assert "Set WINK_CACHE to a writable folder." in caplog.text
