"""`python -m labs.cli`: the command line without an installed script."""

from __future__ import annotations

from labs.cli import main

if __name__ == "__main__":
    main(prog_name="straggler")
