"""The work of the validate step: what the data must look like, and how far it moved."""
