"""The work of the ``configure`` step."""
