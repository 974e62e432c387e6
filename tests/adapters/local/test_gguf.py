from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from weakincentives.adapters.local.gguf import write_bert
from weakincentives.adapters.local.relevance import Vectors

CONFIG = {
    "vocab_size": 7,
    "num_hidden_layers": 1,
    "max_position_embeddings": 4,
    "hidden_size": 2,
    "intermediate_size": 4,
    "num_attention_heads": 1,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
}


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\npump\n##s\n", encoding="utf-8")
    _save(tmp_path / "model.safetensors", {"embeddings.word_embeddings.weight": range(14)}, [7, 2])
    return tmp_path


def _save(
    file: Path, tensors: Mapping[str, Sequence[float]], shape: Sequence[int], number: str = "f", written: str = "F32"
) -> None:
    """A safetensors file of tensors of one shape and kind of numbers."""
    size = struct.calcsize(number) * math.prod(shape)
    header = {
        name: {"dtype": written, "shape": list(shape), "data_offsets": [at * size, (at + 1) * size]}
        for at, name in enumerate(tensors)
    }
    text = json.dumps({**header, "__metadata__": {}}).encode()
    numbers = [number for tensor in tensors.values() for number in tensor]
    file.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack(f"<{len(numbers)}{number}", *numbers))


def test_weights_are_copied_unchanged_under_the_names_of_llama_cpp(bert: Path) -> None:
    write_bert(bert, bert / "out" / "model.gguf")
    data = (bert / "out" / "model.gguf").read_bytes()
    assert data[:4] == b"GGUF" and b"token_embd.weight" in data and "\u2581pump".encode() in data
    assert data.endswith(struct.pack("<14f", *range(14)) + bytes(8))


@pytest.mark.parametrize(("number", "kind", "written"), [("f", 0, "F32"), ("e", 1, "F16")])
def test_tuned_weights_take_the_place_of_the_published_ones(bert: Path, number: str, kind: int, written: str) -> None:
    norm = "embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"
    _save(bert / "model.safetensors", {norm[0]: [1, 2], norm[1]: [3, 4]}, [2])
    _save(bert / "tuned.safetensors", {norm[1]: [5, 6]}, [2], number, written)
    write_bert(bert, bert / "model.gguf", bert / "tuned.safetensors")
    data, tuned = (bert / "model.gguf").read_bytes(), struct.pack(f"<2{number}", 5, 6)
    assert data.count(b"token_embd_norm.bias") == 1
    assert b"token_embd_norm.bias" + struct.pack("<IQI", 1, 2, kind) in data
    assert data.endswith(struct.pack("<2f", 1, 2) + bytes(24) + tuned + bytes(32 - len(tuned)))


def test_a_half_written_file_is_never_left(bert: Path) -> None:
    (bert / "model.safetensors").write_bytes(b"short")
    with pytest.raises(struct.error):
        write_bert(bert, bert / "out" / "model.gguf")
    assert list((bert / "out").iterdir()) == []


def test_vectors_are_computed_once_and_kept_on_disk(tmp_path: Path) -> None:
    asked: list[str] = []

    def embed(texts: object) -> list[list[float]]:
        asked.extend(texts)  # type: ignore[call-overload]
        return [[0.5, float(len(text))] for text in texts]  # type: ignore[attr-defined]

    first = Vectors(embed, tmp_path / "v.sqlite").of(["a", "bb", "a"])
    again = Vectors(embed, tmp_path / "v.sqlite").of(["bb"])
    assert [list(vector) for vector in first] == [[0.5, 1], [0.5, 2], [0.5, 1]]
    assert list(again[0]) == [0.5, 2] and asked == ["a", "bb"]
