"""The agent that runs torchrun in every pod of a job, or on this machine, and reports how it ended."""
