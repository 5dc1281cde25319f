"""``python -m ragcache_integrations.cli``."""

import sys

from .command import main

sys.exit(main())
