"""The work of the ``materialize`` step."""
