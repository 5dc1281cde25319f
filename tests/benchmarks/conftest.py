"""The benchmarks are scripts beside the package; their parts are tested like any other code."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
