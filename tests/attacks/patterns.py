"""Regular expressions that take forever, each with a text on which they do."""

from __future__ import annotations

A = "a" * 60 + "!"


LONG = "a" * 6_000


SPACES = " " * 60_000 + "x"


CATASTROPHIC = [
    # Nested repetitions
    ("(a+)+$", A),
    ("(a*)*$", A),
    ("(?:a+)+b", A),
    ("((a+)+)+$", A),
    ("(a+){2,}$", A),
    ("(a{1,5}){5,}$", A),
    ("((a)*)+$", A),
    ("(?:a?){60}a{60}$", A),
    ("(?:a*?)+b", A),
    (r"^(\w+\s?)*$", "a" * 60 + "!"),
    (r"^(\s*\w+)*$", "a" * 60 + "!"),
    (r"(.*a){30}$", A),
    # Repeated alternatives that overlap
    ("(a|a)*$", A),
    ("(a|aa)+$", A),
    ("(?:a|a?)+$", A),
    (r"(\w|\d|aa?)+$", A),
    ("(.|a)*b$", A),
    ("(a|b|ab)*c", "ab" * 40),
    (r"^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 60),
    (r'"(?:[^"\\]|\\.|a)*"x', '"' + "a" * 60),
    # Lookaround and back-references
    (r"(?=(a+)+$)b", A),
    (r"(a+)+\1\1\1$", A),
    (r"^(?:(a+)\1?)+$", A),
    # Polynomial, with a long line
    ("a*a*a*a*b", LONG),
    ("(?:.*)(?:.*)(?:.*)=", LONG),
    (r"\s+\s+$", SPACES),
    (r"(\d+|a+)[a-z]*[a-z]*!", LONG),
    ("^(.*?,){11}P", "1,2,3,4,5,6,7,8,9,10,11,12,13," * 4),
]
