"""Recurring runs, declared in a reviewed file: the cluster is brought to what it says."""
