"""A step records only what it changed in an in-memory filesystem."""

from weakincentives.durable.journal import Patch, apply_patch, difference
from weakincentives.filesystem import InMemoryFilesystem


def test_only_what_changed_is_in_the_patch() -> None:
    files = InMemoryFilesystem({"a/one.txt": "1", "a/two.txt": "2", "b/three.txt": "3", "gone/x.txt": "x"})
    old = files.snapshot()
    files.write("a/two.txt", "22", mode="overwrite")
    files.write("new.txt", "n")
    files.delete("gone", recursive=True)
    assert difference(old, files.snapshot()) == Patch({"gone": None, "a": Patch({"two.txt": b"22"}), "new.txt": b"n"})


def test_a_patch_turns_the_old_files_into_the_new() -> None:
    files = InMemoryFilesystem({"a/one.txt": "1", "b": "file"})
    old = files.snapshot()
    files.delete("b")
    files.mkdir("b/c", parents=True)
    files.write("b/c/two.txt", "2")
    files.delete("a/one.txt")
    new = files.snapshot()
    other = InMemoryFilesystem({"a/one.txt": "1", "b": "file"})
    other.restore(apply_patch(other.snapshot(), difference(old, new)))
    assert other.snapshot() == new
    assert (other.read("b/c/two.txt"), other.exists("a/one.txt"), other.exists("a")) == ("2", False, True)


def test_unchanged_files_give_an_empty_patch() -> None:
    files = InMemoryFilesystem({"a": "1"})
    assert difference(files.snapshot(), files.snapshot()) == Patch({})
