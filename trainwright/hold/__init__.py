"""Says why a gate held a run: a step of its own, so that the run's graph shows it."""
