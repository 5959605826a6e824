"""Run pipelines on this machine: each step in the environment or the container of its image."""
