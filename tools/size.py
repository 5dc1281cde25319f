"""Keeps the package from growing: budgets of code lines, files and public names for each room.

    python tools/size.py            # a table of all rooms
    python tools/size.py --check    # fails if a number exceeds its budget, or is well below it
    python tools/size.py --write    # lowers the budgets to the present numbers, and raises none

A room is a folder of the package, or the package's modules at the top, or another distribution of
this repository. Code lines have no docstrings, comments, blank lines, imports or ``__all__``. The
budgets are in ``tools/size.toml``. A number that is raised there needs a new reason in ``raised``.
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = "ragcache_integrations"
BUDGETS = "tools/size.toml"
PUBLIC_BELOW = {f"{PACKAGE}/query_cache": "redis"}  # public modules within a room

FILE_LINES = 900  # of any Python file, all of its lines
FOLDER_FILES = 18
LONE_LINES, READERS = 200, 2  # a shorter file has two readers
ALLOWED = {"rooms": 0, "files": FILE_LINES, "folders": FOLDER_FILES}  # without a budget of its own
SLACK = {"lines": 50}  # may be missing from a budget before it has to be lowered

HEADER = """\
# Budgets, checked by tools/size.py. A change may lower a number (python tools/size.py --write), or
# raise it with a new reason beside it: raised = ["+120 lines: a store that ..."].
"""
SECTIONS = {
    "rooms": "# Code lines, Python files, and public names.",
    "files": f"# Longer than {FILE_LINES} lines: split them.",
    "folders": f"# More than {FOLDER_FILES} Python files.",
}
LONE = f"""\
# Shorter than {LONE_LINES} lines, with no reader outside their folder and at most one in it: merge
# them into their readers. This list only gets shorter.
lone = """

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

Budgets = dict[str, Any]
"""By section and key the numbers and the reasons for raises; ``lone`` is a list."""


def python_files(root: Path) -> list[Path]:
    """Python files of the repository, without what is built or installed."""
    folders = [p for p in root.iterdir() if p.is_dir() and p.name not in {"build", "dist"}]
    return sorted(
        path for folder in folders if folder.name[0] != "." for path in folder.rglob("*.py")
    )


def rooms(root: Path) -> dict[str, list[Path]]:
    """Python files of each room."""
    found: dict[str, list[Path]] = {}
    for path in python_files(root):
        folders = path.relative_to(root).parts[:-1]
        if folders[0] == PACKAGE or (len(folders) > 1 and folders[1].startswith("ragcache_")):
            found.setdefault("/".join(folders[:2]), []).append(path)
    return found


def _is_all(node: ast.AST) -> bool:
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def code_lines(source: str) -> int:
    """Count the lines with code, apart from docstrings, imports and ``__all__``."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        value = node.value if isinstance(node, ast.Expr) else None
        docstring = isinstance(value, ast.Constant) and isinstance(value.value, str)
        left_out = docstring or isinstance(node, ast.Import | ast.ImportFrom) or _is_all(node)
        if isinstance(node, ast.stmt) and left_out:
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def public_names(path: Path) -> int:
    """Count the names in a module's ``__all__``."""
    if not path.exists():
        return 0
    statements = ast.parse(path.read_text("utf-8")).body
    return sum(
        len(statement.value.elts)
        for statement in statements
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        and _is_all(statement)
        and isinstance(statement.value, ast.List | ast.Tuple)
    )


class Imports:
    """Which modules import which; names that an ``__init__`` re-exports lead to their modules."""

    def __init__(self, root: Path, paths: list[Path]) -> None:
        self.paths: dict[str, Path] = {}
        for path in paths:
            parts = path.relative_to(root).with_suffix("").parts
            start = next(i for i, part in enumerate(parts) if part.startswith("ragcache_"))
            self.paths[".".join(parts[start:]).removesuffix(".__init__")] = path
        found = {module: list(self._of(module)) for module in self.paths}
        self._exports = {
            module: {name: (source, name) for source, name in found[module] if name}
            for module, path in self.paths.items()
            if path.name == "__init__.py"
        }
        self.readers: dict[str, set[str]] = {module: set() for module in self.paths}
        for module in self.paths.keys() - self._exports.keys():
            for source, name in found[module]:
                read = self._home(source, name)
                if read in self.readers and read != module:
                    self.readers[read].add(module)
        projects = "".join(path.read_text("utf-8") for path in root.glob("*/pyproject.toml"))
        self.entered = {module for module in self.paths if f'"{module}:' in projects}
        """Modules that entry points name."""

    def _of(self, module: str) -> Iterator[tuple[str, str]]:
        """Modules that it imports from, each with a name; or names a module in a string."""
        path = self.paths[module]
        folder = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = folder[: len(folder) - node.level + 1] if node.level else []
                source = ".".join([*above, *([node.module] if node.module else [])])
                yield from ((source, alias.name) for alias in node.names)
            elif isinstance(node, ast.Constant) and node.value in self.paths:
                yield node.value, ""

    def _home(self, source: str, name: str) -> str:
        """Where a name comes from, past the packages that only re-export it."""
        seen = set()
        while f"{source}.{name}" not in self.paths:
            exported = self._exports.get(source, {}).get(name)
            if exported is None or source in seen:
                return source
            seen.add(source)
            source, name = exported
        return f"{source}.{name}"

    def lone(self) -> list[Path]:
        """Short files with no reader outside their folder and at most one in it."""
        return sorted(
            path
            for module, path in self.paths.items()
            if path.name not in {"__init__.py", "__main__.py"}
            and module not in self.entered
            and "import *" not in path.read_text("utf-8")  # an earlier name of another module
            and path.read_text("utf-8").count("\n") < LONE_LINES
            and len(self.readers[module]) < READERS
            and all(self.paths[reader].parent == path.parent for reader in self.readers[module])
        )


def measure(root: Path) -> Budgets:
    """Count everything that has a budget; files and folders only if they exceed what all may be."""
    found = rooms(root)
    sizes: dict[str, dict[str, int]] = {}
    for room, paths in found.items():
        faces = paths if room == PACKAGE else [root / room / "__init__.py"]
        faces = [path for path in faces if path.name == "__init__.py" or path.name[0] != "_"]
        if room in PUBLIC_BELOW:
            faces.append(root / room / PUBLIC_BELOW[room] / "__init__.py")
        sizes[room] = {
            "lines": sum(code_lines(path.read_text("utf-8")) for path in paths),
            "files": len(paths),
            "names": sum(map(public_names, faces)),
        }
    lines: dict[str, int] = {}
    files: dict[str, int] = {}
    for path in python_files(root):
        place = path.relative_to(root)
        lines[place.as_posix()] = path.read_text("utf-8").count("\n")
        folder = place.parent.as_posix()
        files[folder] = files.get(folder, 0) + 1
    lone = Imports(root, [path for paths in found.values() for path in paths]).lone()
    return {
        "rooms": sizes,
        "files": {key: {"lines": n} for key, n in lines.items() if n > FILE_LINES},
        "folders": {key: {"files": n} for key, n in files.items() if n > FOLDER_FILES},
        "lone": [path.relative_to(root).as_posix() for path in lone],
    }


def numbers(budgets: Mapping[str, Any]) -> dict[tuple[str, str, str], int]:
    """Each number by its section, key and kind."""
    return {
        (section, key, kind): number
        for section in SECTIONS
        for key, entry in budgets.get(section, {}).items()
        for kind, number in entry.items()
        if kind != "raised"
    }


def findings(budgets: Budgets, sizes: Budgets) -> Iterator[str]:
    """Say of each number that is not within its budget what to do."""
    budget, size = numbers(budgets), numbers(sizes)
    for place in sorted(budget.keys() | size.keys()):
        section, key, kind = place
        allowed, actual = budget.get(place, ALLOWED[section]), size.get(place, 0)
        said = f"{key}: {actual:,} {kind}, its budget is {allowed:,}"
        if actual > allowed:
            reason = f'raised = ["+{actual - allowed} {kind}: why"]'
            yield f"{said}. Make it smaller, or raise the budget in {BUDGETS} with {reason}"
        elif place not in size:
            yield f"{key} needs no budget for {kind} any more: python tools/size.py --write"
        elif actual < allowed - SLACK.get(kind, 0):
            yield f"{said}. Lower it: python tools/size.py --write"
    listed, lone = set(budgets.get("lone", [])), set(sizes["lone"])
    for key in sorted(lone - listed):
        yield f"{key}: a new file has two readers or {LONE_LINES} lines. Merge it into its reader"
    for key in sorted(listed - lone):
        yield f"{key}: no longer a short file with one reader: python tools/size.py --write"


def raises(before: Budgets, budgets: Budgets) -> Iterator[str]:
    """Say which numbers were raised without a new reason."""
    old = numbers(before)
    for place, number in numbers(budgets).items():
        section, key, kind = place
        reasons = budgets[section][key].get("raised", [])
        known = before.get(section, {}).get(key, {}).get("raised", [])
        was = old.get(place, ALLOWED[section])
        if number > was and not set(reasons) - set(known):
            reason = f'raised = ["+{number - was} {kind}: why"]'
            yield f"{key}: {kind} were raised from {was:,} to {number:,} without {reason}"
    more = len(budgets["lone"]) - len(before["lone"])
    if more > 0:
        yield f"The list of files with one reader got longer by {more}: it only gets shorter"


def lowered(budgets: Budgets, sizes: Budgets) -> Budgets:
    """Lower each budget to the present number, and leave out what is gone; raise none."""
    result: Budgets = {"lone": sorted(set(budgets["lone"]) & set(sizes["lone"]))}
    for section in SECTIONS:
        result[section] = {
            key: {
                **entry,
                **{kind: min(n, entry.get(kind, n)) for kind, n in sizes[section][key].items()},
            }
            for key, entry in budgets.get(section, {}).items()
            if key in sizes[section]
        }
    return result


def written(budgets: Budgets) -> str:
    """``tools/size.toml``."""
    text = HEADER + "\n" + LONE + json.dumps(budgets["lone"], indent=4).replace('"\n]', '",\n]')
    for section, meaning in SECTIONS.items():
        text += f"\n\n{meaning}\n[{section}]\n"
        text += "\n".join(
            f'"{key}" = {{ {", ".join(f"{k} = {json.dumps(v)}" for k, v in entry.items())} }}'
            for key, entry in sorted(budgets[section].items())
        )
    return text.rstrip() + "\n"


def table(budgets: Budgets, sizes: Budgets) -> str:
    """The rooms with their numbers, the largest first."""
    rows = [f"{'':<40}{'code lines':>16}{'files':>14}{'public names':>16}"]
    totals: dict[str, dict[str, int]] = {}
    largest = sorted(sizes["rooms"].items(), key=lambda room: -room[1]["lines"])
    for room, size in largest:
        budget = budgets["rooms"].get(room, {})
        kinds = {kind: (number, budget.get(kind, 0)) for kind, number in size.items()}
        rows.append(row(room, kinds))
        for total in {"all", PACKAGE if room.startswith(PACKAGE) else "all"}:
            sums = totals.setdefault(total, dict.fromkeys(size, 0))
            sums.update({kind: sums[kind] + number for kind, number in size.items()})
    rows.append("")
    for total, name in ((PACKAGE, f"all of {PACKAGE}"), ("all", "all distributions")):
        rows.append(row(name, {kind: (n, n) for kind, n in totals[total].items()}))
    for section, words in (("files", f"lines, not {FILE_LINES}"), ("folders", "files")):
        entries = sizes[section].items()
        rows += ["", *(f"{key}: {next(iter(n.values())):,} {words}" for key, n in entries)]
    rows += ["", f"{len(sizes['lone'])} files with less than {LONE_LINES} lines and two readers"]
    return "\n".join(rows)


def row(name: str, kinds: Mapping[str, tuple[int, int]]) -> str:
    """One line of the table; a number that differs from its budget has the difference beside it."""
    cells = "".join(
        f"{number:>{width},}{f'({number - budget:+,})' if number != budget else '':<6}"
        for (number, budget), width in zip(kinds.values(), (10, 8, 10), strict=True)
    )
    return f"{name:<40}{cells}".rstrip()


def at_head(root: Path) -> Budgets | None:
    """Budgets of the last commit; None without git, or if it has none."""
    command = ["git", "show", f"HEAD:{BUDGETS}"]
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            command, cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return tomllib.loads(done.stdout)


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Print, check or lower; return the exit status."""
    sizes, path = measure(root), root / BUDGETS
    budgets = tomllib.loads(path.read_text("utf-8")) if path.exists() else None
    if arguments == ["--write"]:
        path.write_text(written(sizes if budgets is None else lowered(budgets, sizes)), "utf-8")
    elif arguments == ["--check"]:
        found = list(findings(budgets or {}, sizes))
        before = at_head(root)
        if before is not None and budgets is not None:
            found += raises(before, budgets)
        print("\n".join(found), end="\n" if found else "")
        return 1 if found else 0
    elif arguments:
        print(__doc__)
        return 2
    else:
        print(table(budgets or sizes, sizes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
