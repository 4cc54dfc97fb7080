"""Labs: host agents, runner, measurement, plots, the command line and the exercises."""
