"""``python -m ragcache_integrations.cli``."""

import sys

from .process import main

sys.exit(main())
