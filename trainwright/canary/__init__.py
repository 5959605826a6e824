"""Compares a canary with production by the log of served requests, and sets its share of the traffic."""
