"""Host agents: one process a rank, in its Mininet host's network namespace, talking verbs."""
