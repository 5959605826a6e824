"""Decides whether a schedule's pipeline is started now, and starts it."""
