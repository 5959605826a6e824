"""Author pipelines: catalog, compiler, environments, submission. No step imports it."""
