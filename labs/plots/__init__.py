"""Pictures and the report of a run, drawn from what was measured and from nothing else."""
