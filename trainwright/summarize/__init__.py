"""The last step of every run: one page about what happened, whatever happened."""
