"""Errors keep what they say when they travel."""

import pickle

from weakincentives.errors import BudgetExceededError, FieldProblem, OutputParseError, SerdeError


def test_errors_travel_with_their_attributes() -> None:
    for error in (
        SerdeError((FieldProblem("$.a", "missing"),)),
        BudgetExceededError("over", prompt_name="p", limit="max_turns"),
        OutputParseError("bad", raw="raw", path="$.x"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert (str(copy), vars(copy)) == (str(error), vars(error))
