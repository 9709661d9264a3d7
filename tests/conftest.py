"""Made-up examples are the same in every run, so that a change is judged by what it changed.

Set FEDRANK_EXPLORE=1 to look for new ones.
"""

import os

from hypothesis import settings

settings.register_profile("steady", derandomize=not os.environ.get("FEDRANK_EXPLORE"))
settings.load_profile("steady")
