"""For all tests: what hypothesis finds on a developer's machine, it must not find for the first time in CI."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, print_blob=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
