"""Repeats the quick benchmarks, and says which figures got worse since they were recorded.

``python tools/regressions.py --record`` runs every benchmark that takes ``--quick`` several times,
and writes its figures with their spread to ``benchmarks/recorded/quick``. Without ``--record`` they
are repeated and compared: a figure is worse if its interval does not overlap the recorded one;
``tools/bench/figures.toml`` says which way is worse. Absolute times are only compared on the same
processor with as many cores. A run that was interrupted resumes; finished runs are kept in
``build/quick`` as long as the code is the same.

Exit status: 0 if nothing got worse, 1 if something did, 2 if nothing did but a benchmark failed, a
recorded figure is gone, or none of the benchmarks was recorded. A baseline that cannot be read is
refused before anything runs.
"""

from __future__ import annotations

import argparse
import datetime as dt
import difflib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.bench.figures import RULES, Figure, Rules, figures_of, judge, merged
from tools.bench.runs import ROOT, Runs, code_version, commit, quick_scripts, run_quickly
from tools.benchmarks import machine_facts

SCRIPTS = ROOT / "benchmarks"
RECORDED = SCRIPTS / "recorded" / "quick"
WORK = ROOT / "build" / "quick"
BUSY = 0.5
"""Cores that other programs keep busy at the start, from which on the times are doubtful."""

SHOWN = ("worse", "better", "gone", "new")
"""Verdicts that the table shows; the others only with ``--all``."""


@dataclass(frozen=True)
class Baseline:
    """The recorded figures of a benchmark.

    Attributes:
        about: Date, commit, machine, busy cores, number of runs and their median seconds.
        figures: The figures, by path.
    """

    about: Mapping[str, Any]
    figures: Mapping[str, Figure]

    def save(self, path: Path) -> None:
        """Write it with a line for each figure."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            f"  {json.dumps(name)}: {json.dumps(one.as_list())}"
            for name, one in self.figures.items()
        ]
        figures = ",\n".join(lines)
        text = f'{{\n "about": {json.dumps(self.about)},\n "figures": {{\n{figures}\n }}\n}}\n'
        path.write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Baseline | None:
        """Read one; ``None`` if the benchmark was not recorded.

        Raises:
            SystemExit: The file is no baseline.
        """
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            figures = {name: Figure.from_list(one) for name, one in content["figures"].items()}
            is_same_machine(machine := content["about"]["machine"], machine)
            differences(machine, machine)
        except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
            sys.exit(f"{path} is no baseline ({error!r:.200}): restore it, or use --record")
        return cls(content["about"], figures)


@dataclass(frozen=True)
class Row:
    """A figure, recorded and now."""

    benchmark: str
    figure: str
    recorded: Figure | None
    now: Figure | None
    verdict: str


def compare(
    benchmark: str, recorded: Baseline, now: Mapping[str, Figure], rules: Rules, *, same: bool
) -> Iterator[Row]:
    """Compare the figures of a benchmark with the recorded ones.

    Args:
        benchmark: Its name.
        recorded: What was recorded.
        now: The figures now.
        rules: How to judge them.
        same: Whether the machine is the one on which they were recorded.

    Yields:
        A row for each figure. Its verdict: ``worse``, ``better``, ``same``; ``gone`` or ``new`` if
        only one side has it; ``other machine`` for a time that cannot be compared; ``not judged``
        if no rule knows it. Settings and figures of peers are left out.
    """
    for path in dict.fromkeys((*recorded.figures, *now)):
        rule = rules.of(benchmark, path)
        before, after = recorded.figures.get(path), now.get(path)
        if rule is not None and rule.better == "none":
            continue
        if rule is None:
            verdict = "not judged"
        elif before is None:
            verdict = "new"
        elif after is None:
            verdict = "gone"
        elif rule.time and not same:
            verdict = "other machine"
        else:
            verdict = judge(rule, before, after)
        yield Row(benchmark, path, before, after, verdict)


def is_same_machine(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether absolute times of two machines can be compared."""
    return all(one[name] == other[name] for name in ("processor", "cores"))


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two machines, in words."""
    sides = [
        {name: value for name, value in machine.items() if name != "versions"}
        | dict(machine["versions"])
        for machine in (recorded, now)
    ]
    names = dict.fromkeys(name for side in sides for name in side)
    return [
        f"{name} {sides[0].get(name, 'missing')} then, {sides[1].get(name, 'missing')} now"
        for name in names
        if sides[0].get(name) != sides[1].get(name)
    ]


def chosen(names: Sequence[str] | None, scripts: Mapping[str, Path]) -> dict[str, Path]:
    """Return the benchmarks of some names; all without any.

    Raises:
        SystemExit: There is no such benchmark.
    """
    for name in names or ():
        if name not in scripts:
            close = difflib.get_close_matches(name, scripts, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            sys.exit(f"no quick benchmark {name!r}: there are {', '.join(scripts)}{hint}")
    return {name: scripts[name] for name in names or scripts}


def record(runs: Runs, rules: Rules, folder: Path, about: Mapping[str, Any]) -> None:
    """Write the figures of each benchmark that did not fail."""
    for name, results in runs.results.items():
        if name in runs.errors:
            continue
        figures = {
            path: figure
            for path, figure in merged(list(map(figures_of, results))).items()
            if (rule := rules.of(name, path)) is None or rule.better != "none"
        }
        seconds = sorted(runs.seconds[name])[len(results) // 2]
        Baseline({**about, "runs": len(results), "seconds": seconds}, figures).save(
            folder / f"{name}.json"
        )
        print(f"{name}: {len(figures)} figures of {len(results)} runs recorded")


def compare_all(
    runs: Runs, rules: Rules, baselines: Mapping[str, Baseline | None], about: Mapping[str, Any]
) -> list[Row]:
    """Compare all benchmarks, and say what differs between the machines."""
    rows: list[Row] = []
    said: set[str] = set()
    for name, results in runs.results.items():
        recorded = baselines[name]
        if recorded is None:
            print(f"{name} was not recorded yet: use --record")
            continue
        machine = recorded.about["machine"]
        for line in differences(machine, about["machine"]):
            if line not in said:
                said.add(line)
                print(f"another machine or environment: {line}")
        now = merged(list(map(figures_of, results)))
        same = is_same_machine(machine, about["machine"])
        rows += compare(name, recorded, now, rules, same=same)
    return rows


def show(rows: Sequence[Row], *, everything: bool) -> None:
    """Print the table, and how many figures have each verdict."""
    unknown = [row for row in rows if row.verdict == "not judged"]
    shown = [row for row in rows if everything or row.verdict in SHOWN]
    shown = [row for row in shown if row.verdict != "not judged"]
    shown.sort(key=lambda row: row.verdict != "worse")
    table = [["benchmark", "figure", "recorded", "now", "verdict"]]
    table += [
        [row.benchmark, row.figure, str(row.recorded or "-"), str(row.now or "-"), row.verdict]
        for row in shown
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    if shown:
        print()
        for line in table:
            pairs = zip(line, widths, strict=True)
            print("  ".join(cell.ljust(width) for cell, width in pairs).rstrip())
    for row in unknown:
        print(f"not judged, no rule in {RULES.name} knows it: {row.benchmark}/{row.figure}")
    counts = Counter(row.verdict for row in rows)
    print("\n" + (", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "none"))


def show_errors(errors: Mapping[str, str]) -> None:
    """Print what failed, with its last lines."""
    for name, error in errors.items():
        first, *lines = error.splitlines()
        print(f"\n{name} failed: {first}")
        for line in lines:
            print(f"    {line[:300]}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--record", action="store_true", help="write what later runs are held to")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the benchmarks")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for a run")
    parser.add_argument("--again", action="store_true", help="forget runs that were kept")
    parser.add_argument("--all", action="store_true", help="show what stayed the same, too")
    parser.add_argument("--scripts", type=Path, default=SCRIPTS, help=argparse.SUPPRESS)
    parser.add_argument("--recorded", type=Path, default=RECORDED, help=argparse.SUPPRESS)
    parser.add_argument("--rules", type=Path, default=RULES, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, default=WORK, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.repeats < 1 or not options.limit > 0:
        parser.error(
            "--repeats must be at least 1 and --limit above 0, "
            f"got {options.repeats} and {options.limit:g}"
        )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and record or compare; the exit status."""
    options = parse(arguments)
    rules = Rules.read(options.rules)
    scripts = chosen(options.only, quick_scripts(options.scripts))
    baselines: dict[str, Baseline | None] = {}
    if not options.record:
        baselines = {name: Baseline.read(options.recorded / f"{name}.json") for name in scripts}
    busy = os.getloadavg()[0]
    if busy > BUSY:
        print(f"Other programs keep {busy:.1f} cores busy: the times will be too long.")
    # Runs that are recorded are others than those that are held to them.
    folder = options.work / ("recorded" if options.record else "compared") / code_version()
    runs = run_quickly(
        scripts, folder, repeats=options.repeats, limit=options.limit, again=options.again
    )
    about = {
        "date": str(dt.datetime.now(tz=dt.UTC).date()),
        "commit": commit(),
        "busy_cores": round(busy, 1),
        "machine": machine_facts(),
    }
    verdicts: set[str] = set()
    if options.record:
        record(runs, rules, options.recorded, about)
    else:
        rows = compare_all(runs, rules, baselines, about)
        show(rows, everything=options.all)
        verdicts = {row.verdict for row in rows}
    show_errors(runs.errors)
    if "worse" in verdicts:
        return 1
    is_uncompared = not (options.record or any(baselines.values())) or "gone" in verdicts
    return 2 if runs.errors or is_uncompared else 0


if __name__ == "__main__":
    # A benchmark has a session of its own, so it would outlive a tool that is terminated.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
