"""The web topic talks to the application that it measures."""

from __future__ import annotations

import asyncio
import sys

import pytest

from bench.model_server import serving
from bench.web import application, crowd


@pytest.mark.slow
def test_a_user_gets_an_answer_to_each_message() -> None:
    pytest.importorskip("uvicorn", reason="needs the extra [ui]")
    pytest.importorskip("openai", reason="needs the extra [openai]")
    with serving() as model, application([sys.executable, "-m", "bench.web_app", f"{model}/k1/w30"]) as port:
        measured = asyncio.run(crowd(port, 2))
    assert 0 < measured.first_word <= measured.slow_first_word and measured.cpu > 0
