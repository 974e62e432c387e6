from __future__ import annotations

from tests.cli.conftest import Wink


def store_of(wink: Wink, *words: str, **environment: str) -> str:
    """Where `wink overrides list` looks, as its message says."""
    said = wink("overrides", "list", *words, **environment).stderr
    return said.removeprefix("no overrides in ").partition(";")[0]


def test_a_flag_beats_the_environment_the_project_and_the_user(wink: Wink) -> None:
    (wink.folder / ".config" / "wink").mkdir(parents=True)
    (wink.folder / ".config" / "wink" / "config.toml").write_text('store = "user"\n', encoding="utf-8")
    assert store_of(wink) == "user"
    (wink.folder / "pyproject.toml").write_text('[tool.wink]\nstore = "project"\n', encoding="utf-8")
    assert store_of(wink) == "project"
    assert store_of(wink, WINK_STORE="environment") == "environment"
    assert store_of(wink, "--store", "flag", WINK_STORE="environment") == "flag"


def test_the_project_is_found_from_a_folder_inside_it(wink: Wink) -> None:
    (wink.folder / "pyproject.toml").write_text('[tool.wink]\nstore = "project"\n', encoding="utf-8")
    (wink.folder / "inner").mkdir()
    assert store_of(Wink(wink.folder / "inner")) == "project"


def test_a_project_without_settings_changes_nothing(wink: Wink) -> None:
    for content in (b"[project]\n", b'[project]\nname = "\xff"\n'):
        (wink.folder / "pyproject.toml").write_bytes(content)
        assert store_of(wink) == ".wink/overrides"


def test_settings_that_cannot_be_read_are_wrong_usage(wink: Wink) -> None:
    for content in (b"[tool.wink\n", b'[tool.wink]\nstore = "\xff"\n'):
        (wink.folder / "pyproject.toml").write_bytes(content)
        done = wink("overrides", "list")
        expected = f"wink: {wink.folder / 'pyproject.toml'} must be TOML in UTF-8: "
        assert (done.returncode, done.stderr.startswith(expected)) == (2, True)
