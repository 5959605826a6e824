"""The road to a cluster: a compiled pipeline becomes a run there, exactly once, and is followed."""
