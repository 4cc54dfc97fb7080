"""For all tests: what hypothesis finds on a developer's machine, it must not find for the first time in CI."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, print_blob=True)
# `pytest --hypothesis-profile few`, for an emulated processor.
settings.register_profile("few", derandomize=True, print_blob=True, max_examples=10, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")
