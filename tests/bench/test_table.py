import json

from bench.row import Row
from bench.table import as_json, lines


def test_a_row_holds_when_figure_and_ratio_do() -> None:
    assert Row("r", 1.0, "ms", goal=1.0, ratio=2.9, ratio_goal=3.0).ok is True
    assert Row("r", 1.0, "ms", goal=1.0, ratio=3.1, ratio_goal=3.0).ok is False
    assert Row("r", 1.0, "ms", ratio=3.1).ok is None


def test_a_goal_may_be_a_floor() -> None:
    assert Row("right section first", 86, "%", goal=85, better="more").ok is True
    assert Row("right section first", 84, "%", goal=85, better="more").ok is False


def test_the_table_shows_figure_goal_ratio_and_verdict() -> None:
    row = Row("render", 0.81, "ms", goal=1.0, ratio=2.0, ratio_goal=3.0, baseline="f-strings")
    assert lines([row]) == [
        "| row    | figure  | goal    | ratio                      | ok  |",
        "|--------|---------|---------|----------------------------|-----|",
        "| render | 0.81 ms | <= 1 ms | 2.00x of f-strings (<= 3x) | yes |",
    ]


def test_json_has_the_verdict_too() -> None:
    assert json.loads(as_json({"topic": [Row("r", 2, "", goal=1)]}))["topic"][0]["ok"] is False
