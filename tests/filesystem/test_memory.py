import json
import threading

from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.serde import dump_tagged, load_tagged


def test_a_snapshot_is_the_tree_itself_and_not_a_copy():
    fs = InMemoryFilesystem({f"d{n % 10}/f{n}": "x" for n in range(1000)})
    first, second = fs.snapshot(), fs.snapshot()
    assert first.root is second.root
    fs.write("d0/f0", "changed")
    third = fs.snapshot()
    assert third.root.entries["d1"] is first.root.entries["d1"]
    assert first.root.entries["d0"].entries["f0"] == b"x"


def test_changes_after_the_first_one_are_made_in_place():
    fs = InMemoryFilesystem()
    fs.snapshot()
    fs.write("d/f0", "x")
    directory = fs._root.entries["d"]
    fs.write("d/f1", "x")
    assert fs._root.entries["d"] is directory


def test_a_snapshot_goes_through_json_into_another_filesystem():
    fs = InMemoryFilesystem({"a/b.txt": "Grüße", "image": b"\xff\x00", "empty": ""})
    fs.mkdir("hollow")
    text = json.dumps(dump_tagged(fs.snapshot()))
    other = InMemoryFilesystem()
    other.restore(load_tagged(json.loads(text)))
    assert other.snapshot() == fs.snapshot()
    other.write("a/b.txt", "changed")
    assert fs.read("a/b.txt") == "Grüße"


def test_threads_lose_no_write():
    fs = InMemoryFilesystem()

    def work(name):
        for number in range(200):
            fs.write(f"{name}/{number}", "x")
            fs.write("log", "x", mode="append")
            fs.snapshot()
            fs.list()

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fs.glob("*/*")) == 800
    assert fs.stat("log").size == 800
