"""``python -m ragcache_integrations.cli``."""

import sys

from .command import run_process as main

sys.exit(main())
