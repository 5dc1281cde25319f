"""``python -m ragcache_integrations.cli``."""

import sys

from ragcache_integrations.cli.command import main

sys.exit(main())
