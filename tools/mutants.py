"""Mutants: small faults put into the package, one at a time, which the tests ought to find.

    python tools/mutants.py draw --seed 1 --number 300
    python tools/mutants.py run [--only 0-99] [--minutes 30]
    python tools/mutants.py report

``draw`` picks faults from all rooms in proportion to their code lines and writes
``tools/mutants/drawn.jsonl``. ``run`` applies each to a copy of the last commit in
``build/mutants``, runs the tests that reach the changed statement, first those of the same room,
and appends the result to ``tools/mutants/results.jsonl``. It continues after an interruption.

A mutant is known by its function, statement and change rather than by file and line, so it is found
again after the code was moved. To learn which tests reach it, each folder of tests runs once with a
call before each such statement; processes that the tests start make these calls, too.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import mmap
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.size import PACKAGE, code_lines, rooms

ROOT = Path(__file__).parents[1]
DRAWN, RESULTS, BUILD = "tools/mutants/drawn.jsonl", "tools/mutants/results.jsonl", "build/mutants"

MUTANT_SECONDS = 300  # of all tests of a mutant
CHOSEN_SECONDS = 150  # the same, by what they took without it
MAP_SECONDS = 14400  # of a folder's tests
ONE_FAILURE = ("-x", "--timeout=100")  # a mutant may keep a test from ending

COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Div: "*"}
IN_ROOM = "survived its room"  # the tests of other rooms have not run
LOGGED = re.compile(r"\b(_?log(ger)?\.|warnings\.)?(debug|info|warning|warn|error|exception|log)\(")
SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutant:
    """One change of one statement.

    Attributes:
        path: The file, relative to the repository.
        function: Qualified name.
        statement: First line of the statement, as ``ast.unparse`` writes it.
        before: The expression or statement that is replaced.
        after: What it is replaced with.
        ordinal: Among the mutants of the function that are equal otherwise.
    """

    path: str
    function: str
    statement: str
    before: str
    after: str
    ordinal: int = 0

    @property
    def change(self) -> tuple[str, str, str]:
        """What stays the same if the code is moved."""
        return self.statement, self.before, self.after

    def __str__(self) -> str:
        return f"{self.path} {self.function}: {self.statement}\n    {self.before}  ->  {self.after}"


@dataclass(frozen=True)
class Place:
    """Where a mutant is in a file: the text that it replaces, and the line of its statement."""

    mutant: Mutant
    node: ast.AST
    line: int


def functions(node: ast.AST, outer: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each function with its qualified name."""
    for child in ast.iter_child_nodes(node):
        inner = outer
        if isinstance(child, SCOPES):
            inner = f"{outer}{child.name}."
            if isinstance(child, FUNCTIONS):
                yield inner[:-1], child
        yield from functions(child, inner)


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements within a function, without those of functions within it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, SCOPES):
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


def expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield a statement's expressions, without annotations, texts, logging and inner statements."""
    annotation = getattr(node, "annotation", None)
    for child in ast.iter_child_nodes(node):
        # Before Python 3.12, the parts of an f-string have wrong positions.
        if child is annotation or isinstance(child, ast.stmt | ast.JoinedStr):
            continue
        if isinstance(child, ast.Call) and LOGGED.match(ast.unparse(child)):
            continue
        if isinstance(child, ast.expr):
            yield child
        if not isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from expressions(child)


def is_text(node: ast.expr) -> bool:
    """Whether it is a string, which cannot be subtracted."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def other_constant(node: ast.AST | None) -> str | None:
    """Return another value than that of a number or a boolean."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, int | float):
        return None
    return repr(not node.value if isinstance(node.value, bool) else node.value + 1)


def changes_of_expression(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield what may be replaced in an expression, and with what."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            swapped = COMPARISONS[type(operator)]
            yield node, f"({ast.unparse(left)}) {swapped} ({ast.unparse(right)})"
        case ast.BoolOp(op=operator, values=values):
            word = " or " if isinstance(operator, ast.And) else " and "
            yield node, word.join(f"({ast.unparse(value)})" for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, ast.unparse(operand)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in ARITHMETIC:
            if not is_text(left) and not is_text(right):
                swapped = ARITHMETIC[type(operator)]
                yield node, f"({ast.unparse(left)}) {swapped} ({ast.unparse(right)})"
        case ast.Constant():
            if other := other_constant(node):
                yield node, other
        case ast.IfExp(test=test):
            yield test, f"not ({ast.unparse(test)})"


def changes_of_statement(node: ast.stmt, function: Any) -> Iterator[tuple[ast.AST, str]]:
    """Yield what may be replaced in a statement, and with what."""
    match node:
        case ast.If(test=test) | ast.While(test=test):
            yield test, f"not ({ast.unparse(test)})"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield value, "None"
        case ast.Expr(value=ast.Call() | ast.Await()) if not LOGGED.match(ast.unparse(node)):
            yield node, "pass"
    if isinstance(node, ast.Return | ast.Continue | ast.Break) and node not in function.body:
        yield node, "pass"


def places(path: str, source: str) -> Iterator[Place]:
    """Yield every mutant that a file may have."""
    count: Counter[Mutant] = Counter()

    def place(name: str, statement: str, change: tuple[ast.AST, str], line: int) -> Place:
        mutant = Mutant(path, name, statement, ast.unparse(change[0]), change[1])
        count[mutant] += 1
        return Place(replace(mutant, ordinal=count[mutant] - 1), change[0], line)

    for name, function in functions(ast.parse(source)):
        for argument, default in defaults(function.args):
            if other := other_constant(default):
                yield place(name, f"{argument}=", (default, other), entrance(function))
        chained: dict[int, int] = {}  # an elif starts where the first if does
        for node in statements(function):
            line = chained.get(id(node), node.lineno)
            if isinstance(node, ast.If) and node.orelse and isinstance(node.orelse[0], ast.If):
                chained[id(node.orelse[0])] = line
            statement = ast.unparse(node).partition("\n")[0]
            if isinstance(node, ast.Raise | ast.Assert) or statement.startswith("msg = "):
                continue
            changes = list(changes_of_statement(node, function))
            for expression in expressions(node):
                changes += changes_of_expression(expression)
            yield from (place(name, statement, change, line) for change in changes)


def defaults(arguments: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    """Yield the name and the default of each argument that has one."""
    positional = [*arguments.posonlyargs, *arguments.args]
    last = positional[len(positional) - len(arguments.defaults) :]
    for argument, default in (
        *zip(last, arguments.defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ):
        if default is not None:
            yield argument.arg, default


def entrance(function: Any) -> int:
    """Line of the first statement after the docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return int(body[0].lineno) if body else 0


def all_places(root: Path, paths: Iterable[Path]) -> list[Place]:
    """Every mutant that these files may have."""
    return [
        place
        for path in paths
        for place in places(path.relative_to(root).as_posix(), path.read_text("utf-8"))
    ]


def draw(root: Path, seed: int, number: int) -> list[Mutant]:
    """Draw mutants from the package's rooms in proportion to their code lines.

    A statement has at most one.
    """
    source = random.Random(seed)  # noqa: S311 - no secret
    found = {room: paths for room, paths in rooms(root).items() if room.startswith(PACKAGE)}
    lines = {
        room: sum(code_lines(path.read_text("utf-8")) for path in paths)
        for room, paths in found.items()
    }
    drawn = []
    for room, share in shares(lines, number).items():
        by_statement: dict[tuple[str, str, str], list[Mutant]] = defaultdict(list)
        for place in all_places(root, found[room]):
            mutant = place.mutant
            by_statement[mutant.path, mutant.function, mutant.statement].append(mutant)
        chosen = source.sample(sorted(by_statement), min(share, len(by_statement)))
        drawn += [source.choice(by_statement[statement]) for statement in chosen]
    source.shuffle(drawn)
    return drawn


def shares(lines: Mapping[str, int], number: int) -> dict[str, int]:
    """Divide a number in proportion, by largest remainders."""
    exact = {room: number * count / sum(lines.values()) for room, count in lines.items()}
    whole = {room: int(share) for room, share in exact.items()}
    by_rest = sorted(exact, key=lambda room: whole[room] - exact[room])
    for room in by_rest[: number - sum(whole.values())]:
        whole[room] += 1
    return whole


def find(mutant: Mutant, alike: Iterable[Place]) -> Place | None:
    """Find a mutant again, by its change and then by file, function and ordinal.

    Args:
        mutant: As it was drawn.
        alike: Those with the same change in the code as it is now.

    Returns:
        None if it is gone, or if several functions with other names have it.
    """
    name = mutant.function.rpartition(".")[2]

    def nearness(place: Place) -> tuple[bool, ...]:
        other = place.mutant
        return (
            other.function.rpartition(".")[2] == name,
            other.function == mutant.function,
            other.path == mutant.path,
            Path(other.path).name == Path(mutant.path).name,
            other.ordinal == mutant.ordinal,
        )

    ranked = sorted(alike, key=nearness, reverse=True)
    if not ranked or (len(ranked) > 1 and not nearness(ranked[0])[0]):
        return None
    return ranked[0]


def find_all(root: Path, mutants: list[Mutant]) -> list[Place | None]:
    """Find each mutant in the code of ``root``."""
    alike: dict[tuple[str, str, str], list[Place]] = defaultdict(list)
    wanted = {mutant.change for mutant in mutants}
    for place in all_places(root, (path for paths in rooms(root).values() for path in paths)):
        if place.mutant.change in wanted:
            alike[place.mutant.change].append(place)
    return [find(mutant, alike[mutant.change]) for mutant in mutants]


def changed(source: str, place: Place) -> str:
    """Apply a mutant to the text of its file."""
    node: Any = place.node
    lines = source.encode().splitlines(keepends=True)  # positions are counted in bytes
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    text = place.mutant.after
    if isinstance(node, ast.expr) and text != "None":
        text = f"({text})"
    return (source.encode()[:start] + text.encode() + source.encode()[end:]).decode()


def recording(source: str, numbered: Iterable[tuple[int, Place]]) -> str:
    """Add a call before each mutant's statement that records that a test reached it."""
    lines = source.split("\n")
    for number, place in sorted(numbered, key=lambda pair: -pair[1].line):
        line = lines[place.line - 1]
        call = f'__import__("tools.mutants", fromlist=["_"]).reached({number})'
        lines.insert(place.line - 1, line[: len(line) - len(line.lstrip())] + call)
    return "\n".join(lines)


# In the copy: which test runs, and which mutants it reaches. All processes share a file in memory,
# because event loops of some tests refuse system calls. The file is beside this copy of the tools,
# because some tests start processes with an empty environment. It holds the number of the test that
# is running, and then a row for each test with a byte for each mutant.

_LOG = ROOT / "reached"
_ROW, _ROWS = 1024, 20_000
_tests: list[str] = []
_shared: mmap.mmap | None = None


def _open() -> mmap.mmap:
    global _shared  # noqa: PLW0603 - once in each process
    if _shared is None:
        number = os.open(_LOG.with_suffix(".shared"), os.O_RDWR | os.O_CREAT)
        os.ftruncate(number, _ROW * _ROWS)
        _shared = mmap.mmap(number, _ROW * _ROWS)
    return _shared


def reached(mutant: int) -> None:
    """Record that the test that is running reached a mutant."""
    shared = _open()
    shared[_ROW * (1 + int.from_bytes(shared[:4], "little")) + mutant] = 1


def pytest_runtest_logstart(nodeid: str) -> None:
    """Number the test; 0 is what is done before the first one."""
    _tests.append(nodeid)
    _open()[:4] = len(_tests).to_bytes(4, "little")
    _record("test", nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    """Record how each part of a test ended."""
    _record(report.outcome, f"{report.duration:.2f}")


def _record(kind: str, text: str) -> None:
    with _LOG.open("a", encoding="utf-8") as file:
        file.write(f"{kind} {len(_tests)} {text}\n")


# What runs the tests of a copy.


@dataclass(frozen=True)
class Run:
    """How a run of tests ended.

    Attributes:
        status: pytest's; None if it ran out of time.
        tests: Those that began.
        seconds: Of each test that passed.
        failed: The tests that failed.
        reached: For each mutant the tests that reached it; an empty name is an import.
    """

    status: int | None
    tests: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    reached: dict[int, list[str]] = field(default_factory=dict)


def run_tests(tree: Path, arguments: Iterable[str], seconds: float) -> Run:
    """Run tests of a copy, and read what they recorded."""
    log = tree / _LOG.name
    shared = log.with_suffix(".shared")
    log.write_text("", "utf-8")
    shared.unlink(missing_ok=True)
    listed = tree / "tests.args"
    listed.write_text("\n".join(arguments), "utf-8")
    options = ["-p", "tools.mutants", "-p", "no:cacheprovider", "--hypothesis-seed", "0"]
    command = [sys.executable, "-m", "pytest", *options, "-q"]
    process = subprocess.Popen(  # noqa: S603 - our own command
        [*command, f"@{listed}"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        status: int | None = process.wait(seconds)
    except subprocess.TimeoutExpired:
        status = None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    run = read_log(status, log.read_text("utf-8").splitlines())
    if shared.exists():
        rows = shared.read_bytes()[_ROW:]
        for number, test in enumerate(["", *run.tests]):
            row = rows[number * _ROW : (number + 1) * _ROW]
            for mutant in (mutant for mutant, byte in enumerate(row) if byte):
                run.reached.setdefault(mutant, []).append(test)
    return run


def read_log(status: int | None, lines: list[str]) -> Run:
    """Read what a run recorded; tests of which a part failed or was skipped did not pass."""
    run = Run(status)
    not_passed = set()
    for kind, number, text in (line.split(" ", 2) for line in lines):
        if kind == "test":
            run.tests.append(text)
            continue
        test = run.tests[int(number) - 1]
        if kind == "passed":
            run.seconds[test] = run.seconds.get(test, 0) + float(text)
        else:
            not_passed.add(test)
            run.failed.extend([test] if kind == "failed" else [])
    for test in not_passed:
        run.seconds.pop(test, None)
    return run


class Hunt:
    """Runs mutants of the last commit, one after another."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.mutants = [Mutant(**line) for line in read_lines(root / DRAWN)]
        self._commit = git(root, "log", "-1", "--format=%h", "--", PACKAGE).strip()
        listed = git(root, "ls-tree", "-r", "HEAD").splitlines()
        code = [x for x in listed if re.search(rf"\t(?!(tests/)?tools/).*\.py$|\t{DRAWN}$", x)]
        self.version = hashlib.sha256("\n".join(code).encode()).hexdigest()[:8]
        self._folder = root / BUILD / self.version
        self._tree = self._copy("tree")
        self._maps: dict[str, Run] = {}
        self.places = find_all(self._tree, self.mutants)
        entries = [*self._tree.glob("tests/*"), *self._tree.glob("*/tests/*")]
        self._parts = sorted(
            entry.relative_to(self._tree).as_posix()
            for entry in entries
            if entry.match("test_*.py") or any(entry.rglob("test_*.py"))
        )

    def _copy(self, name: str) -> Path:
        """Copy the commit, again if it is there: a run that was interrupted left a mutant."""
        tree = self._folder / name
        tree.mkdir(parents=True, exist_ok=True)
        archive = self._folder / "commit.tar"
        git(self._root, "archive", "--output", str(archive), "HEAD")
        with tarfile.open(archive) as file:
            file.extractall(tree, filter="data")
        return tree

    def results(self) -> dict[int, list[dict[str, Any]]]:
        """Results of each mutant, at all commits."""
        found = defaultdict(list)
        for line in read_lines(self._root / RESULTS):
            found[line["mutant"]].append(line)
        return found

    def left(self, numbers: Iterable[int]) -> Iterator[tuple[int, bool]]:
        """Yield the mutants to run: first with the tests of their rooms, then with all others."""
        for everywhere in (False, True):
            results = self.results()
            for number in numbers:
                here = [x["status"] for x in results[number] if x["version"] == self.version]
                if not here or (everywhere and here[-1] == IN_ROOM):
                    yield number, everywhere

    def run(self, number: int, *, everywhere: bool) -> dict[str, Any]:
        """Run the tests that reach a mutant, and append what came of it."""
        start = time.monotonic()
        outcome = self._outcome(number, everywhere=everywhere)
        line = {
            "mutant": number,
            **outcome,
            "seconds": round(time.monotonic() - start),
            "commit": self._commit,
            "version": self.version,
        }
        with (self._root / RESULTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return line

    def _outcome(self, number: int, *, everywhere: bool) -> dict[str, Any]:
        place = self.places[number]
        if place is None:
            return {"status": "gone"}
        reaching = self._reaching(number, place, everywhere=everywhere)
        tests = self._chosen(number, place, reaching)
        path = self._tree / place.mutant.path
        source = path.read_text("utf-8")
        while tests:
            path.write_text(changed(source, place), "utf-8")
            try:
                run = run_tests(self._tree, [*ONE_FAILURE, *tests], MUTANT_SECONDS)
            finally:
                path.write_text(source, "utf-8")
            ran = {"tests": len(tests), "of": len(reaching)}
            if run.status is None:
                return {"status": "timeout", "by": run.tests[-1] if run.tests else "", **ran}
            if run.status == 0:
                break
            by = run.failed[0] if run.failed else tests[0]  # else no test could be imported
            if run_tests(self._tree, [*ONE_FAILURE, by], MUTANT_SECONDS).status == 0:
                return {"status": "found", "by": by, **ran}
            tests.remove(by)  # it fails without the mutant, too
        if not everywhere:
            status = IN_ROOM
        elif any(number in self._map(part).reached for part in self._parts):
            status = "survived"
        else:
            status = "not reached"
        return {"status": status, "tests": len(tests), "of": len(reaching)}

    def _reaching(self, number: int, place: Place, *, everywhere: bool) -> dict[str, float]:
        """Return the tests that reach a mutant, with their seconds: its room's, or all others.

        All tests of the room do if it is reached by an import, or may be compiled by numba.
        """
        path = Path(place.mutant.path)
        near = [part for part in self._parts if Path(part).name in path.parts]
        near = near or [part for part in self._parts if part.endswith(".py")]
        compiled = "numba" in (self._tree / path).read_text("utf-8")
        tests: dict[str, float] = {}
        for part in set(self._parts) - set(near) if everywhere else near:
            run = self._map(part)
            reaching: Iterable[str] = run.reached.get(number, [])
            if not everywhere and (compiled or "" in reaching):
                reaching = run.seconds
            tests.update({test: run.seconds[test] for test in reaching if test in run.seconds})
        return tests

    def _chosen(self, number: int, place: Place, tests: Mapping[str, float]) -> list[str]:
        """Choose tests for the time there is: those that found it before, near ones, fast files."""
        words = set(re.split(r"[/_.]", place.mutant.path))
        before = {line.get("by", "").rpartition("::")[2] for line in self.results()[number]}
        files: Counter[str] = Counter()
        for test, seconds in tests.items():
            files[test.partition("::")[0]] += math.ceil(1000 * seconds)

        def order(test: str) -> tuple[bool, int, int, str]:
            file, _, name = test.partition("::")
            known = name.rpartition("::")[2] in before
            return not known, -len(words & set(re.split(r"[/_.]", file))), files[file], file

        chosen: list[str] = []
        total = 0.0
        for test in sorted(tests, key=order):
            total += tests[test]
            if total > CHOSEN_SECONDS and chosen:
                break
            chosen.append(test)
        return chosen

    def _map(self, part: str) -> Run:
        """Return which tests of a part reach what; run them if it is not known yet."""
        if part not in self._maps:
            path = self._folder / "maps" / f"{part.replace('/', '-')}.json"
            if not path.exists():
                run = run_tests(self._recording_tree(), [part], MAP_SECONDS)
                if run.status not in {0, 1, None} or not run.seconds:
                    sys.exit(f"{part}: no test passes without a mutant (pytest: {run.status})")
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps(asdict(run)), "utf-8")
            known = json.loads(path.read_text("utf-8"))
            known["reached"] = {int(key): value for key, value in known["reached"].items()}
            self._maps[part] = Run(**known)
        return self._maps[part]

    def _recording_tree(self) -> Path:
        tree = self._copy("recording")
        by_path: dict[str, list[tuple[int, Place]]] = defaultdict(list)
        for number, place in enumerate(self.places):
            if place is not None and place.line:
                by_path[place.mutant.path].append((number, place))
        for name, numbered in by_path.items():
            source = (tree / name).read_text("utf-8")
            if "numba" not in source:
                (tree / name).write_text(recording(source, numbered), "utf-8")
        return tree


def git(root: Path, *arguments: str) -> str:
    """Return the output of git."""
    command = ["git", *arguments]
    return subprocess.run(  # noqa: S603 - our own command
        command, cwd=root, check=True, capture_output=True, text=True
    ).stdout


def read_lines(path: Path) -> list[Any]:
    """Read a file of JSON lines; it is empty if it does not exist."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def report(root: Path) -> bool:
    """Print how many were found, and the others.

    Returns:
        Whether all that were found before, in other code, are found now.
    """
    mutants = [Mutant(**line) for line in read_lines(root / DRAWN)]
    results: dict[int, list[Any]] = defaultdict(list)
    for line in read_lines(root / RESULTS):
        results[line["mutant"]].append(line)
    last = {number: lines[-1] for number, lines in sorted(results.items())}
    seconds = [line["seconds"] for lines in results.values() for line in lines]
    counts = dict(Counter(line["status"] for line in last.values()))
    print(f"{len(mutants)} drawn, {len(last)} run: {counts}")
    print(f"{median(seconds) if seconds else 0:.0f} s each (median)")
    kept = True
    for number, line in last.items():
        if line["status"] != "found":
            before = any(other["status"] == "found" for other in results[number])
            kept = kept and not before
            print(f"{number} {line['status']}{', found before' * before}: {mutants[number]}")
    return kept


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Draw, run or report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="draw mutants, in place of those drawn before")
    drawing.add_argument("--seed", type=int, default=1)
    drawing.add_argument("--number", type=int, default=300)
    running = commands.add_parser("run", help="run those without a result at this commit")
    running.add_argument("--only", help="numbers, from 0: 0-99")
    running.add_argument("--minutes", type=float, default=float("inf"), help="start none later")
    commands.add_parser("report", help="print what came of them")
    options = parser.parse_args(arguments)
    if options.command == "draw":
        drawn = draw(root, options.seed, options.number)
        text = "".join(json.dumps(asdict(mutant)) + "\n" for mutant in drawn)
        (root / DRAWN).parent.mkdir(exist_ok=True)
        (root / DRAWN).write_text(text, "utf-8")
    elif options.command == "run":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the tests, too
        hunt, end = Hunt(root), time.monotonic() + 60 * options.minutes
        first, _, last = (options.only or f"0-{len(hunt.mutants) - 1}").partition("-")
        for number, everywhere in hunt.left(range(int(first), int(last or first) + 1)):
            if time.monotonic() > end:
                break
            print(json.dumps(hunt.run(number, everywhere=everywhere)), flush=True)
    else:
        return 0 if report(root) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
