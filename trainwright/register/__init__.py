"""The step that enters a model, with where it came from, into the model registry."""
