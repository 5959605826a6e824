"""Models that benchmarks run in virtual time."""
