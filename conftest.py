"""Runs the examples of README, docs and our own skill as tests, and keeps tests apart from the user's settings."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from sybil import Sybil

from tests.extras import EXTRAS, hide_extras
from tests.pages import PARSERS

# Without bytecode, every assertion is rewritten in each run, and each child compiles the library anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

pytest_plugins = ["tests.rounds", "tests.limits", "tests.flakes", "tests.groups"]

# What tests keep of the environment they are started in.
KEPT = (
    "PATH",
    "TMPDIR",
    "LANG",
    "LC_",
    "TZ",
    "USER",
    "LOGNAME",
    "VIRTUAL_ENV",
    "PYTHON",
    "PYTEST_",
    "HYPOTHESIS_",
    "LD_",
)
SKILLS = ["skills/bundled/*/*.md", "skills/bundled/*/references/*.md"]

pytest_collect_file = Sybil(parsers=PARSERS, patterns=["README.md", "docs/*.md", "docs/*/*.md", *SKILLS]).pytest()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="core only: no optional package, no test marked slow")


def pytest_configure(config: pytest.Config) -> None:
    leave_the_user_out(config)
    # No test has to survive a power failure.
    os.fsync = lambda fd: None
    config.addinivalue_line("markers", "slow: takes seconds; left out by --quick")
    # The durable engine's listener drops its connection unclosed if it is stopped in the moment in which it connects;
    # the collector then tells of that in some other test.
    config.addinivalue_line("filterwarnings", "ignore:<psycopg.Connection object:ResourceWarning")
    # A loaded machine is no failure: no test has to be quick.
    patient = hypothesis.settings(
        max_examples=60, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    quick = hypothesis.settings(patient, max_examples=20)
    if config.getoption("--quick"):
        hide_extras()
        # An example that is skipped halfway, for want of an extra, leaves open what it has opened.
        config.addinivalue_line("filterwarnings", "ignore:unclosed database:ResourceWarning")
    hypothesis.settings.register_profile("ours", quick if config.getoption("--quick") else patient)
    hypothesis.settings.load_profile("ours")


def leave_the_user_out(config: pytest.Config) -> None:
    """Keep the user's settings, keys, proxies and caches from tests, such as a larger model that has been fetched."""
    for name in [name for name in os.environ if not name.startswith(KEPT)]:
        del os.environ[name]
    os.environ["HOME"] = str(empty_home(config))
    # Root's PATH may lack these outside of a login; the package of Postgres calls useradd there.
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    # Ignored in the background of a script, and then in every child, too.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def empty_home(config: pytest.Config) -> Path:
    """A folder among pytest's caches, which later runs use again; without the cache plugin, one for this run."""
    cache: pytest.Cache | None = getattr(config, "cache", None)
    if cache is not None:
        return cache.mkdir("home")
    home = tempfile.TemporaryDirectory()
    config.add_cleanup(home.cleanup)
    return Path(home.name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.suffix == ".md":
            # Some examples run on the local adapter.
            item.add_marker(pytest.mark.limit(180))
    if config.getoption("--quick"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow"))


def pytest_collection_finish(session: pytest.Session) -> None:
    # Modules and collected tests stay until the end, and each search for garbage would look at all of them.
    gc.collect()
    gc.freeze()


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
