from __future__ import annotations

import json
import struct
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
    tensor = {"dtype": "F32", "shape": [7, 2], "data_offsets": [0, 56]}
    header = json.dumps({"embeddings.word_embeddings.weight": tensor, "__metadata__": {}}).encode()
    weights = struct.pack("<Q", len(header)) + header + struct.pack("<14f", *range(14))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\npump\n##s\n", encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(weights)
    return tmp_path


def test_weights_are_copied_unchanged_under_the_names_of_llama_cpp(bert: Path) -> None:
    write_bert(bert, bert / "out" / "model.gguf")
    data = (bert / "out" / "model.gguf").read_bytes()
    assert data[:4] == b"GGUF" and b"token_embd.weight" in data and "\u2581pump".encode() in data
    assert data.endswith(struct.pack("<14f", *range(14)) + bytes(8))


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
