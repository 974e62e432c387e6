"""How hard the code is to read, package by package, and the record that these figures may not pass.

A package is a folder of `src/weakincentives` with all its subfolders; the modules beside them count as one, and
`(all)` is the code of all of them together.

`python -m tests.guards.density` prints the figures, with `--modules PACKAGE` those of its modules, too. With `--lower`,
it lowers the record to figures that have fallen; a new package begins with the aims. With `--moved PACKAGE ...`, it
records the figures of packages that have taken up code of others, or other names, as they are now; the figures of
`(all)` may not have risen by that.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass, fields
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "weakincentives"
RECORD = Path(__file__).with_name("density.json")
TOTAL = "(all)"

# A variable with such a name does not say what it holds: the reader has to look at the right side again.
VAGUE_NAMES = frozenset(
    [
        "found",
        "each",
        "given",
        "known",
        "made",
        "said",
        "asked",
        "told",
        "kept",
        "shown",
        "sent",
        "written",
        "taken",
        "added",
        "opened",
        "held",
        "wanted",
        "seen",
        "named",
        "chosen",
        "spoken",
        "whose",
        "left",
        "done",
        "others",
        "other",
        "brought",
        "expected",
        "placed",
        "listed",
        "called",
        "folded",
        "read",
        "counted",
        "declared",
        "gone",
        "lost",
        "waiting",
        "begun",
        "ended",
        "changed",
        "undone",
        "cut",
    ]
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
MANY_PARAMETERS = 8
LONG_LINE = 100


@dataclass(frozen=True, slots=True)
class Density:
    """The figures of one package. A lower one is better."""

    #: For each 1,000 lines of code.
    comprehensions: float
    #: Comprehensions with a comprehension or a ternary inside, for each 1,000 lines of code.
    nested: float
    #: For each 1,000 lines of code.
    ternaries: float
    #: The percentage of assigned variables that are named by a participle or pronoun.
    vague_names: float
    #: The percentage of lines over 100 columns.
    long_lines: float
    #: In lines.
    longest_function: float
    #: The percentage of functions with 8 or more parameters.
    many_parameters: float


#: What every package should reach. A package below an aim may rise to it; above it, its figures only fall.
AIM = Density(
    comprehensions=20,
    nested=0.5,
    ternaries=16,
    vague_names=2,
    long_lines=2,
    longest_function=60,
    many_parameters=1,
)

#: By how much a figure may lie below the record until the record has to be lowered.
SLACK = Density(
    comprehensions=1,
    nested=0.5,
    ternaries=1,
    vague_names=0.5,
    long_lines=0.5,
    longest_function=10,
    many_parameters=0.5,
)

#: What to do about a figure that has risen.
ADVICE = {
    "comprehensions": "write the loop, or a function with a name",
    "nested": "write two loops, or give the inner part a name",
    "ternaries": "write an if statement, or return early",
    "vague_names": "name what the variable holds; VAGUE_NAMES in tests/guards/density.py do not",
    "long_lines": f"break lines at {LONG_LINE} columns, and name parts of long expressions",
    "longest_function": "divide it where its parts have names",
    "many_parameters": "group parameters that belong together in a class",
}

MEASURES = tuple(field.name for field in fields(Density))


class Counts:
    """What is counted in the modules of one package."""

    def __init__(self) -> None:
        self.lines = 0
        self.long_lines = 0
        self.comprehensions = 0
        self.nested = 0
        self.ternaries = 0
        self.variables = 0
        self.vague_names = 0
        self.functions = 0
        self.many_parameters = 0
        self.longest_function = 0

    def add_module(self, source: str) -> None:
        for line in source.split("\n"):
            if line.strip():
                self.lines += 1
                self.long_lines += len(line) > LONG_LINE
        for node in ast.walk(ast.parse(source)):
            self._add_node(node)

    def _add_node(self, node: ast.AST) -> None:
        if isinstance(node, COMPREHENSIONS):
            self.comprehensions += 1
            self.nested += holds_another(node)
        elif isinstance(node, ast.IfExp):
            self.ternaries += 1
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self.variables += 1
            self.vague_names += node.id in VAGUE_NAMES
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.functions += 1
            self.many_parameters += count_parameters(node) >= MANY_PARAMETERS
            assert node.end_lineno is not None
            self.longest_function = max(self.longest_function, node.end_lineno - node.lineno + 1)

    def add(self, other: Counts) -> None:
        """Add what was counted in another package."""
        for name in vars(self):
            if name == "longest_function":
                self.longest_function = max(self.longest_function, other.longest_function)
            else:
                setattr(self, name, getattr(self, name) + getattr(other, name))

    def density(self) -> Density:
        thousands = self.lines / 1000
        return Density(
            comprehensions=round(self.comprehensions / thousands, 1),
            nested=round(self.nested / thousands, 1),
            ternaries=round(self.ternaries / thousands, 1),
            vague_names=round(100 * self.vague_names / max(self.variables, 1), 1),
            long_lines=round(100 * self.long_lines / self.lines, 1),
            longest_function=self.longest_function,
            many_parameters=round(100 * self.many_parameters / max(self.functions, 1), 1),
        )


def holds_another(comprehension: ast.AST) -> bool:
    """True if a comprehension contains another one, or a ternary."""
    for node in ast.walk(comprehension):
        if node is not comprehension and isinstance(node, (*COMPREHENSIONS, ast.IfExp)):
            return True
    return False


def count_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The parameters that a caller may pass: all but `self` and `cls`."""
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    if names and names[0] in ("self", "cls"):
        del names[0]
    return len(names)


def package_of(path: Path, source: Path = PACKAGE) -> str:
    """The package that a module belongs to; the modules beside the packages count as one."""
    parts = path.relative_to(source).parts
    return parts[0] if len(parts) > 1 else source.name


def measured(source: Path = PACKAGE) -> dict[str, Density]:
    """The figures of today's code, by package, and those of all of it."""
    counts: defaultdict[str, Counts] = defaultdict(Counts)
    for path in sorted(source.rglob("*.py")):
        counts[package_of(path, source)].add_module(path.read_text(encoding="utf-8"))
    total = Counts()
    figures = {}
    for package in sorted(counts):
        figures[package] = counts[package].density()
        total.add(counts[package])
    return {TOTAL: total.density(), **figures}


def measured_modules(package: str, source: Path = PACKAGE) -> dict[str, Density]:
    """The figures of each module of a package, or of all."""
    figures = {}
    for path in sorted(source.rglob("*.py")):
        if package in (TOTAL, package_of(path, source)):
            counts = Counts()
            counts.add_module(path.read_text(encoding="utf-8"))
            figures[str(path.relative_to(source))] = counts.density()
    return figures


def recorded() -> dict[str, Density]:
    """The figures that may not be passed, by package."""
    stored = json.loads(RECORD.read_text(encoding="utf-8"))
    return {package: Density(**figures) for package, figures in stored.items()}


def risen(record: dict[str, Density], today: dict[str, Density]) -> list[str]:
    """The figures that are above both the record and the aim, in words."""
    problems = []
    for package, density in today.items():
        limits = record.get(package, AIM)
        for name in MEASURES:
            figure, limit = getattr(density, name), max(getattr(limits, name), getattr(AIM, name))
            if figure > limit:
                advice = f"{ADVICE[name]} (python -m tests.guards.density --modules {package} lists its modules)"
                problems.append(f"{package}: {name} is {figure}, may be {limit}; {advice}")
    return problems


def stale(record: dict[str, Density], today: dict[str, Density]) -> list[str]:
    """The parts of the record that the code has left behind, in words."""
    problems = []
    for package in sorted({*record, *today}):
        if package not in record:
            problems.append(f"{package} is not in the record; run python -m tests.guards.density --lower")
        elif package not in today:
            problems.append(f"{package} is gone; run python -m tests.guards.density --lower")
        else:
            problems.extend(_stale_figures(package, record[package], today[package]))
    return problems


def _stale_figures(package: str, limits: Density, density: Density) -> list[str]:
    problems = []
    for name in MEASURES:
        figure, limit = getattr(density, name), getattr(limits, name)
        if limit > getattr(AIM, name) and figure < limit - getattr(SLACK, name):
            advice = "run python -m tests.guards.density --lower"
            problems.append(f"{package}: {name} is {figure}, recorded {limit}; {advice}")
    return problems


def lowered(record: dict[str, Density], today: dict[str, Density]) -> dict[str, Density]:
    """The record with each figure that has fallen; a new package begins with the aims."""
    result = {}
    for package, density in today.items():
        before = record.get(package, AIM)
        figures = {name: min(getattr(before, name), getattr(density, name)) for name in MEASURES}
        result[package] = Density(**figures)
    return result


def with_moved(record: dict[str, Density], today: dict[str, Density], packages: list[str]) -> dict[str, Density]:
    """The record with the figures that these packages have now; raises ValueError if it may not be changed so."""
    unknown = sorted({*packages} - {*today})
    if unknown:
        raise ValueError(f"there is no package {', '.join(unknown)}")
    if TOTAL in packages:
        raise ValueError(f"{TOTAL} is no package that code is moved to; its figures only fall")
    problems = risen({TOTAL: record[TOTAL]}, {TOTAL: today[TOTAL]})
    if problems:
        raise ValueError("the code as a whole has become harder to read: " + "; ".join(problems))
    moved = {package: today[package] for package in packages}
    return lowered({**record, **moved}, today)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lower", action="store_true", help="lower the record to figures that have fallen")
    parser.add_argument("--modules", metavar="PACKAGE", help="print the figures of a package's modules, too")
    parser.add_argument("--moved", nargs="+", metavar="PACKAGE", help="record these packages as they are now")
    arguments = parser.parse_args()
    today = measured()
    if arguments.moved:
        try:
            write_record(with_moved(recorded(), today, arguments.moved))
        except ValueError as error:
            sys.exit(f"The record is not changed: {error}.")
    elif arguments.lower:
        write_record(lowered(recorded(), today))
    print_figures({"(aim)": AIM, **today})
    if arguments.modules:
        print_figures(measured_modules(arguments.modules))


def print_figures(figures: dict[str, Density]) -> None:
    width = max(map(len, figures)) + 1
    print(" " * width + "".join(f"{name:>18}" for name in MEASURES))
    for name, density in figures.items():
        columns = [f"{getattr(density, measure):18}" for measure in MEASURES]
        print(f"{name:{width}}" + "".join(columns))


def write_record(figures: dict[str, Density]) -> None:
    rows = {package: asdict(density) for package, density in figures.items()}
    RECORD.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
