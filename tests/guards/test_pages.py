"""Writing the output of a page's examples keeps the dots that stand for what differs from run to run."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.pages import corrected, merged
from tests.rounds import rounds

PAGE = """\
# A page

```python
print("run 17f3, 3 turns")
print("cost: $0.02")
print("a")
print("b")
print("end")
```

```output
run ..., 3 turns
cost: $0.01
...
end
```
"""


def test_a_corrected_page_keeps_the_lines_that_still_match(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    after = corrected(page)
    assert after == PAGE.replace("cost: $0.01", "cost: $0.02")
    page.write_text(after)
    assert corrected(page) == after


@pytest.mark.parametrize(
    ("shown", "printed", "result"),
    [
        ("a ...\nb\n", "a 1\nc\n", "a ...\nc\n"),
        ("a ...\nb\n", "new\na 1\nb\n", "new\na ...\nb\n"),
        ("a ...\ngone\nb ...\n", "a 1\nb 2\n", "a ...\nb ...\n"),
        ("a\n...\nb\nold\n", "a\n1\n2\nb\nnew\n", "a\n...\nb\nnew\n"),
        ("a\n...\n", "b\n\nc\n", "b\n...\n"),
        ("a ...\n", "", ""),
        ("", "a\n", "a\n"),
    ],
)
def test_lines_that_match_stay_and_others_are_replaced(shown: str, printed: str, result: str) -> None:
    assert merged(shown, printed) == result


@pytest.mark.parametrize("seed", range(rounds(20, 60)))
def test_what_is_merged_matches_and_has_the_dots_of_all_lines_that_are_still_printed(seed: int) -> None:
    drawn = random.Random(seed)
    names = [f"line {number}" for number in range(drawn.randint(1, 8))]
    with_dots = {name for name in names if drawn.random() < 0.6}
    page = [f"{name}: ..." if name in with_dots else f"{name}: 0" for name in names]
    kept = [name for name in names if drawn.random() < 0.8]
    output = []
    for name in kept:
        output += [f"new {drawn.random()}"] * drawn.randint(0, 1)
        output.append(f"{name}: {drawn.random() if name in with_dots else 0}")
    text = merged("\n".join(page), "\n".join(output))
    assert merged(text, "\n".join(output)) == text
    assert [line for line in text.split("\n") if line.startswith("line")] == [
        line for line in page if line.partition(":")[0] in kept
    ]
