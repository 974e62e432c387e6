"""Writes all-MiniLM-L6-v2 as a GGUF file, the only format llama.cpp reads.

The package registry carries this model as safetensors and vocabulary only. Both formats are a header and raw numbers,
so the numbers are copied as they are and no numeric package is needed. The tensors that were tuned for this library
(bench/local/train.py) take the place of the published ones.
"""

from __future__ import annotations

import json
import os
import re
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

ALIGNMENT = 32
# The number of each type of numbers in a GGUF file.
_KINDS = {"F32": 0, "F16": 1}
_NAMES = (
    (r"embeddings\.word_embeddings\.", "token_embd."),
    (r"embeddings\.position_embeddings\.", "position_embd."),
    (r"embeddings\.token_type_embeddings\.", "token_types."),
    (r"embeddings\.LayerNorm\.", "token_embd_norm."),
    (r"encoder\.layer\.(\d+)\.attention\.self\.query\.", r"blk.\1.attn_q."),
    (r"encoder\.layer\.(\d+)\.attention\.self\.key\.", r"blk.\1.attn_k."),
    (r"encoder\.layer\.(\d+)\.attention\.self\.value\.", r"blk.\1.attn_v."),
    (r"encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"blk.\1.attn_output."),
    (r"encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.", r"blk.\1.attn_output_norm."),
    (r"encoder\.layer\.(\d+)\.intermediate\.dense\.", r"blk.\1.ffn_up."),
    (r"encoder\.layer\.(\d+)\.output\.dense\.", r"blk.\1.ffn_down."),
    (r"encoder\.layer\.(\d+)\.output\.LayerNorm\.", r"blk.\1.layer_output_norm."),
)


def write_bert(folder: Path, target: Path, *tuned: Path) -> None:
    """Convert a BERT encoder's `config.json`, `vocab.txt` and `model.safetensors` into `target`, all or nothing.

    The tensors in the safetensors files `tuned` replace those of the model.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = vocabulary[: config["vocab_size"]]
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=target.name)
    try:
        with os.fdopen(descriptor, "wb") as out, ExitStack() as stack:
            weights = [stack.enter_context(file.open("rb")) for file in (folder / "model.safetensors", *tuned)]
            _write(out, _metadata(config, vocabulary), weights)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _metadata(config: Mapping[str, Any], vocabulary: Sequence[str]) -> dict[str, Any]:
    return {
        "general.architecture": "bert",
        "general.name": "all-MiniLM-L6-v2",
        "general.file_type": 0,
        "bert.block_count": config["num_hidden_layers"],
        "bert.context_length": config["max_position_embeddings"],
        "bert.embedding_length": config["hidden_size"],
        "bert.feed_forward_length": config["intermediate_size"],
        "bert.attention.head_count": config["num_attention_heads"],
        "bert.attention.layer_norm_epsilon": float(config["layer_norm_eps"]),
        "bert.attention.causal": False,
        "bert.pooling_type": 1,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "jina-v2-en",
        "tokenizer.ggml.token_type_count": config["type_vocab_size"],
        "tokenizer.ggml.tokens": [_word_piece(piece) for piece in vocabulary],
        "tokenizer.ggml.token_type": [3 if _special(piece) else 1 for piece in vocabulary],
        "tokenizer.ggml.padding_token_id": vocabulary.index("[PAD]"),
        "tokenizer.ggml.unknown_token_id": vocabulary.index("[UNK]"),
        "tokenizer.ggml.cls_token_id": vocabulary.index("[CLS]"),
        "tokenizer.ggml.bos_token_id": vocabulary.index("[CLS]"),
        "tokenizer.ggml.seperator_token_id": vocabulary.index("[SEP]"),
        "tokenizer.ggml.eos_token_id": vocabulary.index("[SEP]"),
        "tokenizer.ggml.mask_token_id": vocabulary.index("[MASK]"),
    }


def _special(piece: str) -> bool:
    return piece.startswith("[") and piece.endswith("]") and len(piece) > 2


def _word_piece(piece: str) -> str:
    """llama.cpp marks the start of a word; BERT's vocabulary marks its continuation."""
    if _special(piece):
        return piece
    return piece[2:] if piece.startswith("##") else "\u2581" + piece


def _write(out: BinaryIO, metadata: Mapping[str, Any], weights: Iterable[BinaryIO]) -> None:
    tensors = {name: tensor for file in weights for name, tensor in _tensors(file)}
    out.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        out.write(_text(key) + _value(value))
    offset = 0
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]
        out.write(_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, tensor.kind, offset))
        offset += _padded(tensor.size)
    out.write(bytes(_padded(out.tell()) - out.tell()))
    for tensor in tensors.values():
        tensor.file.seek(tensor.start)
        out.write(tensor.file.read(tensor.size))
        out.write(bytes(_padded(tensor.size) - tensor.size))


class _Tensor(NamedTuple):
    """Where a tensor is in a safetensors file."""

    file: BinaryIO
    kind: int
    shape: Sequence[int]
    start: int
    size: int


def _tensors(file: BinaryIO) -> Iterator[tuple[str, _Tensor]]:
    """The tensors in a safetensors file that llama.cpp knows, by its names for them."""
    header_size = struct.unpack("<Q", file.read(8))[0]
    for source, tensor in json.loads(file.read(header_size)).items():
        for pattern, name in _NAMES:
            if tensor.get("dtype") in _KINDS and (match := re.match(pattern, source)):
                begin, end = tensor["data_offsets"]
                place = _Tensor(file, _KINDS[tensor["dtype"]], tensor["shape"], 8 + header_size + begin, end - begin)
                yield match.expand(name) + source[match.end() :], place


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_text(item) for item in value)
    return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
