"""Tests pass whatever the machine around them is like: the user's home, settings, caches and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from weakincentives.adapters.local.cache import stamp_file
from weakincentives.adapters.local.gguf.models import model_file, published

ROOT = Path(__file__).parents[2]
INTERRUPTED = "tests/cli/test_view.py::test_it_serves_until_it_is_interrupted"
INNER = "test_no_setting_and_no_model_of_the_user_is_seen"


def test_no_setting_and_no_model_of_the_user_is_seen() -> None:
    assert not [name for name in os.environ if name.startswith(("WINK_", "OPENAI_", "HTTPS_", "NO_", "XDG_CACHE"))]
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    assert "/usr/sbin" in os.environ["PATH"].split(os.pathsep)
    assert model_file(None) is None


@pytest.mark.slow
def test_tests_pass_whatever_the_user_has_set_and_fetched(tmp_path: Path) -> None:
    cache = tmp_path / "home" / ".cache"
    fetched = cache / "weakincentives" / "models" / published().file.name
    fetched.parent.mkdir(parents=True)
    fetched.write_bytes(b"GGUF")
    status = fetched.stat()
    stamp = cache / "weakincentives" / stamp_file(published().sha256).name
    stamp.write_text(f"{published().sha256} {status.st_size} {status.st_mtime_ns}")
    for folder in (*fetched.parents[:4],):
        folder.chmod(0o555)
    settings = {
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(cache),
        "WINK_LOCAL_MODEL": "/nowhere.gguf",
        "WINK_ADAPTER": "openai:none",
        "OPENAI_API_KEY": "sk-none",
        "OPENAI_BASE_URL": "http://127.0.0.1:1",
        "HTTPS_PROXY": "http://127.0.0.1:1",
        "NO_COLOR": "1",
        "PATH": "/usr/bin:/bin",
    }
    script = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    tests = [f"{Path(__file__)}::{INNER}", INTERRUPTED]
    pytest_words = [sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={tmp_path / 'cache'}", *tests]
    done = subprocess.run(
        [sys.executable, "-c", script, *pytest_words],
        cwd=ROOT,
        env={**os.environ, **settings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
