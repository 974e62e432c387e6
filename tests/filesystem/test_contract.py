"""What every filesystem does alike."""

import pytest

from weakincentives.errors import WinkError
from weakincentives.filesystem import (
    AlreadyExistsError,
    BadPatternError,
    DirectoryNotEmptyError,
    Entry,
    Filesystem,
    FilesystemError,
    InMemoryFilesystem,
    InvalidPathError,
    IsDirectoryError,
    Match,
    NotDirectoryError,
    NotFoundError,
    NotTextError,
    SnapshotError,
)


def test_it_is_a_filesystem(fs):
    assert isinstance(fs, Filesystem)
    assert not isinstance(object(), Filesystem)


def test_what_was_written_is_read(fs):
    fs.write("notes/today.md", "Grüße\r\nzwei\n")
    assert fs.read("notes/today.md") == "Grüße\r\nzwei\n"
    assert fs.read_bytes("./notes//today.md") == "Grüße\r\nzwei\n".encode()


def test_bytes_are_kept_as_they_are(fs):
    fs.write("image.png", b"\x89PNG\xff\x00")
    assert fs.read_bytes("image.png") == b"\x89PNG\xff\x00"


def test_an_empty_file_is_a_file(fs):
    fs.write("empty", "")
    assert fs.read("empty") == ""
    assert (fs.stat("empty").kind, fs.stat("empty").size) == ("file", 0)


@pytest.mark.parametrize(
    ("offset", "limit", "expected"),
    [
        (0, None, "a\nb\u2028b\nc"),
        (1, None, "b\u2028b\nc"),
        (0, 1, "a\n"),
        (1, 1, "b\u2028b\n"),
        (2, 9, "c"),
        (3, 1, ""),
        (0, 0, ""),
    ],
)
def test_reading_takes_an_offset_and_a_limit_in_lines(fs, offset, limit, expected):
    fs.write("f", "a\nb\u2028b\nc")
    assert fs.read("f", offset=offset, limit=limit) == expected


def test_a_negative_offset_is_refused(fs):
    fs.write("f", "a")
    with pytest.raises(FilesystemError, match="offset and limit must be 0 or more"):
        fs.read("f", offset=-1)


def test_create_refuses_a_file_that_exists(fs):
    fs.write("f", "1", mode="create")
    with pytest.raises(AlreadyExistsError, match="'f' already exists; use mode='overwrite'"):
        fs.write("f", "2", mode="create")
    assert fs.read("f") == "1"


def test_overwrite_replaces_and_append_adds(fs):
    fs.write("f", "1", mode="overwrite")
    fs.write("f", "2")
    fs.write("f", "3", mode="append")
    fs.write("g", "4", mode="append")
    assert (fs.read("f"), fs.read("g")) == ("23", "4")


def test_an_unknown_mode_is_refused(fs):
    with pytest.raises(ValueError, match="mode must be 'create', 'overwrite' or 'append', got 'w'"):
        fs.write("f", "1", mode="w")
    assert not fs.exists("f")


def test_content_that_is_not_text_is_refused(fs):
    with pytest.raises(NotTextError, match="cannot be written as UTF-8"):
        fs.write("f", "\ud800")
    with pytest.raises(TypeError, match="must be str or bytes, got int"):
        fs.write("f", 1)
    assert not fs.exists("f")


def test_mkdir_makes_parents_only_when_asked(fs):
    with pytest.raises(NotFoundError, match="'a/b' does not exist; pass parents=True"):
        fs.mkdir("a/b/c")
    assert not fs.exists("a")
    fs.mkdir("a/b/c", parents=True)
    assert fs.stat("a/b/c").kind == "directory"


def test_mkdir_on_what_exists(fs):
    fs.mkdir("a")
    fs.write("f", "")
    fs.mkdir("a", exist_ok=True)
    fs.mkdir(".", exist_ok=True)
    for path in ("a", "f"):
        with pytest.raises(AlreadyExistsError, match=f"'{path}' already exists"):
            fs.mkdir(path)
    with pytest.raises(AlreadyExistsError):
        fs.mkdir("f", exist_ok=True)


def test_a_listing_is_sorted_and_its_paths_can_be_used(fs):
    fs.write("src/b.py", "12345")
    fs.write("src/a.py", "")
    fs.mkdir("src/empty")
    assert fs.list("src") == (
        Entry("a.py", "src/a.py", "file", 0),
        Entry("b.py", "src/b.py", "file", 5),
        Entry("empty", "src/empty", "directory", 0),
    )
    assert [entry.path for entry in fs.list()] == ["src"]


def test_listing_a_file_or_nothing_is_an_error(fs):
    fs.write("f", "")
    with pytest.raises(NotDirectoryError, match="'f' is a file, not a directory"):
        fs.list("f")
    with pytest.raises(NotFoundError, match="'g' does not exist"):
        fs.list("g")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", ("a.py", "c.txt", "we[i]rd.py")),
        ("*.py", ("a.py", "we[i]rd.py")),
        ("**/*.py", ("a.py", "src/b.py", "src/deep/er/d.py", "src-2/e.py", "we[i]rd.py")),
        ("src/**", ("src/b.py", "src/deep/er/d.py")),
        ("src/*", ("src/b.py",)),
        ("src/**/d.py", ("src/deep/er/d.py",)),
        ("**/er/*", ("src/deep/er/d.py",)),
        ("./src//b.py", ("src/b.py",)),
        ("?.{py,txt}", ("a.py", "c.txt")),
        ("{src,src-2}/{b,e}.py", ("src/b.py", "src-2/e.py")),
        ("[ab].py", ("a.py",)),
        ("[!ab].*", ("c.txt",)),
        ("we[[]i]rd.py", ("we[i]rd.py",)),
        ("*.rs", ()),
        ("src", ()),
    ],
)
def test_glob_gives_the_files_that_match(fs, pattern, expected):
    for path in ("a.py", "c.txt", "src/b.py", "src/deep/er/d.py", "src-2/e.py", "we[i]rd.py"):
        fs.write(path, "")
    assert fs.glob(pattern) == expected


def test_glob_below_a_directory_gives_whole_paths(fs):
    fs.write("src/deep/a.py", "")
    assert fs.glob("*/*.py", path="src") == ("src/deep/a.py",)
    with pytest.raises(NotFoundError):
        fs.glob("*", path="nowhere")
    fs.write("f", "")
    with pytest.raises(NotDirectoryError):
        fs.glob("*", path="f")


def test_grep_gives_path_number_and_line(fs):
    fs.write("b.py", "x = 1\r\ny = 2\nx = 3")
    fs.write("a/c.txt", "x\n")
    fs.write("blob", b"x\x00x")
    fs.write("latin", b"x \xe9")
    assert fs.grep("^x") == (Match("a/c.txt", 1, "x"), Match("b.py", 1, "x = 1"), Match("b.py", 3, "x = 3"))
    assert fs.grep("^x", limit=2) == fs.grep("^x")[:2]
    assert fs.grep("y", path="b.py") == (Match("b.py", 2, "y = 2"),)


def test_grep_can_be_narrowed_by_a_glob(fs):
    for path in ("a.py", "src/b.py", "src/b.txt"):
        fs.write(path, "x")
    assert [match.path for match in fs.grep("x", glob="*.py")] == ["a.py", "src/b.py"]
    assert [match.path for match in fs.grep("x", glob="src/*")] == ["src/b.py", "src/b.txt"]
    assert [match.path for match in fs.grep("x", path="src", glob="*.py")] == ["src/b.py"]
    assert [match.path for match in fs.grep("x", path="src/b.py", glob="*.py")] == ["src/b.py"]


@pytest.mark.parametrize("pattern", ["(a|b)+!", "a+b*", "(a++)+!", "[(a+)+]", r"(a+)?\(?", "(aa){2,}", "(a+){2}!"])
def test_repetitions_are_searched_for(fs, pattern):
    fs.write("f", "a" * 40 + "!")
    assert len(fs.grep(pattern)) == 1


def test_a_glob_with_many_stars_is_quick(fs):
    fs.write("/".join(["a" * 100] * 8), "")
    assert fs.glob("*a" * 30 + "b") == ()
    assert fs.glob("**/a*/" * 8 + "b") == ()
    assert len(fs.glob("*a" * 30 + "/**/*a*a*/**")) == 1


def test_a_bad_pattern_is_explained(fs):
    with pytest.raises(BadPatternError, match=r"'\(' is not a regular expression: missing \)"):
        fs.grep("(")
    with pytest.raises(BadPatternError, match="bad character range"):
        fs.glob("[z-a]")
    with pytest.raises(BadPatternError, match="empty"):
        fs.glob("")
    with pytest.raises(BadPatternError, match="alternatives"):
        fs.glob("{a,b,c,d,e,f,g}" * 4)
    with pytest.raises(FilesystemError, match="limit must be 1 or more"):
        fs.grep("x", limit=0)
    with pytest.raises(NotFoundError):
        fs.grep("x", path="nowhere")


def test_stat_says_what_is_there(fs):
    fs.write("src/f", "12345")
    stat = fs.stat("./src/f")
    assert (stat.path, stat.kind, stat.size) == ("src/f", "file", 5)
    assert (fs.stat(".").path, fs.stat(".").kind) == (".", "directory")
    with pytest.raises(NotFoundError, match="'g' does not exist"):
        fs.stat("g")


def test_exists_is_true_for_files_and_directories_only_where_they_are(fs):
    fs.write("src/f", "")
    assert [fs.exists(path) for path in (".", "src", "src/f", "src/g", "src/f/g", "no/where")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


def test_deleting(fs):
    fs.write("src/deep/f", "")
    fs.mkdir("empty")
    fs.delete("empty")
    with pytest.raises(DirectoryNotEmptyError, match="'src' is not empty; pass recursive=True"):
        fs.delete("src")
    fs.delete("src/deep/f")
    assert fs.list("src/deep") == ()
    fs.write("src/g", "")
    fs.delete("src", recursive=True)
    assert fs.list() == ()
    with pytest.raises(NotFoundError, match="'src' does not exist"):
        fs.delete("src")


@pytest.mark.parametrize("path", [".", "", "./"])
def test_the_root_cannot_be_deleted(fs, path):
    with pytest.raises(InvalidPathError, match="root cannot be deleted"):
        fs.delete(path, recursive=True)


def test_files_are_not_directories_and_directories_are_not_files(fs):
    fs.write("f", "")
    fs.mkdir("d")
    for read in (fs.read, fs.read_bytes):
        with pytest.raises(IsDirectoryError, match="'d' is a directory; list it"):
            read("d")
        with pytest.raises(NotDirectoryError, match="'f' is a file, not a directory"):
            read("f/x")
    with pytest.raises(IsDirectoryError):
        fs.write("d", "x")
    with pytest.raises(NotDirectoryError):
        fs.write("f/x", "x")
    with pytest.raises(NotDirectoryError):
        fs.mkdir("f/x/y", parents=True)


def test_reading_a_binary_file_as_text_is_explained(fs):
    fs.write("f", b"ok\n\xff\n")
    with pytest.raises(NotTextError, match=r"'f' is not UTF-8 text \(byte 0xff\); use read_bytes"):
        fs.read("f")
    assert fs.read("f", limit=1) == "ok\n"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("..", r"contains '\.\.'"),
        ("a/../../b", r"contains '\.\.'"),
        ("a/..", r"contains '\.\.'"),
        ("/etc/passwd", "is absolute; use a path relative to the root, such as 'etc/passwd'"),
        ("//x", "is absolute"),
        ("a\0b", "NUL"),
        ("\ud800", "not valid Unicode"),
        ("a/" * 500, "deep"),
    ],
)
def test_paths_that_lead_out_are_refused_by_every_operation(fs, path, reason):
    operations = (
        fs.read,
        fs.read_bytes,
        lambda path: fs.write(path, "x"),
        lambda path: fs.mkdir(path, parents=True),
        fs.list,
        fs.stat,
        fs.exists,
        lambda path: fs.delete(path, recursive=True),
        lambda path: fs.glob("*", path=path),
        lambda path: fs.grep("x", path=path),
    )
    for operation in operations:
        with pytest.raises(InvalidPathError, match=reason) as caught:
            operation(path)
        assert caught.value.path == path


@pytest.mark.parametrize("pattern", ["../*", "/etc/*", "a/../*"])
def test_globs_that_lead_out_are_refused(fs, pattern):
    with pytest.raises(InvalidPathError, match="leads out of the root"):
        fs.glob(pattern)


def test_errors_are_also_the_built_in_ones(fs):
    with pytest.raises(FileNotFoundError) as caught:
        fs.read("f")
    assert isinstance(caught.value, WinkError)
    fs.mkdir("d")
    with pytest.raises(IsADirectoryError):
        fs.read("d")
    with pytest.raises(FileExistsError):
        fs.mkdir("d")


def contents(fs):
    directories = []

    def visit(path):
        for entry in fs.list(path):
            if entry.kind == "directory":
                directories.append(entry.path)
                visit(entry.path)

    visit(".")
    return {path: fs.read_bytes(path) for path in fs.glob("**")}, sorted(directories)


def test_restore_takes_back_everything(fs):
    fs.write("kept/f", "old")
    fs.write("gone/deep/f", b"\xff")
    fs.mkdir("gone/empty")
    before = contents(fs)
    snapshot = fs.snapshot()
    fs.write("kept/f", "new")
    fs.write("kept/f", "!", mode="append")
    fs.write("made/up", "x")
    fs.delete("gone", recursive=True)
    fs.write("gone", "a file now")
    fs.restore(snapshot)
    assert contents(fs) == before


def test_snapshots_can_be_restored_in_any_order_and_again(fs):
    states, snapshots = [], []
    for number in range(4):
        fs.write("f", str(number))
        fs.write(f"d{number % 2}/f{number}", "x" * number)
        if number == 2:
            fs.delete("d0", recursive=True)
        states.append(contents(fs))
        snapshots.append(fs.snapshot())
    for index in (0, 3, 1, 1, 2, 0, 2):
        fs.write("f", "dirty")
        fs.restore(snapshots[index])
        assert contents(fs) == states[index]


def test_a_snapshot_of_something_else_is_refused(fs):
    with pytest.raises(SnapshotError):
        fs.restore({"f": "x"})


def test_a_filesystem_can_be_made_of_files():
    fs = InMemoryFilesystem({"a/b": "text", "c": b"bytes"})
    assert (fs.read("a/b"), fs.read_bytes("c")) == ("text", b"bytes")
