"""Runs the properties of tests/fuzz again and again, from another seed each time.

    python tools/fuzz.py --minutes 10 --part cache_files

Ends at the first example that fails, with what pytest says of it and with status 1. Hypothesis
keeps such an example and tries it first in the next run.
"""

from __future__ import annotations

import argparse
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = sorted(
    path.stem.removeprefix("test_") for path in (ROOT / "tests" / "fuzz").glob("test_*.py")
)
_PASSING = re.compile(r"^ +- (\d+) passing", re.MULTILINE)
_SLOWEST = 1800  # seconds of one property


def passing(output: str) -> int:
    """Return how many examples passed, by Hypothesis's statistics."""
    return sum(map(int, _PASSING.findall(output)))


def fuzz(part: str, seconds: float) -> bool:
    """Run a part's tests until the time is up, and say what came of it.

    Returns:
        Whether all passed.
    """
    start, examples, seeds = time.monotonic(), 0, 0
    while time.monotonic() < start + seconds:
        seeds += 1
        seed = str(secrets.randbits(32))
        command = [sys.executable, "-m", "pytest", f"tests/fuzz/test_{part}.py", "--exitfirst"]
        command += ["--quiet", "--hypothesis-profile", "thorough", "--hypothesis-show-statistics"]
        command += ["--hypothesis-seed", seed, "-o", f"timeout={_SLOWEST}"]
        done = subprocess.run(  # noqa: S603 - our own command
            command, cwd=ROOT, capture_output=True, text=True, check=False
        )
        examples += passing(done.stdout)
        spent = f"{examples:,} examples from {seeds} seeds in {time.monotonic() - start:.0f} s"
        if done.returncode:
            print(
                f"{done.stdout}{done.stderr}\n{part}: {spent}, the last one failed (seed {seed})",
                flush=True,
            )
            return False
        print(f"{part}: {spent}, nothing found", flush=True)
    return True


def main() -> int:
    """Fuzz one part, or each in turn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=1.0, help="of each part (default: 1)")
    parser.add_argument("--part", choices=PARTS, help="the only part (default: each in turn)")
    options = parser.parse_args()
    parts = [options.part] if options.part else PARTS
    return 0 if all(fuzz(part, 60 * options.minutes) for part in parts) else 1


if __name__ == "__main__":
    sys.exit(main())
