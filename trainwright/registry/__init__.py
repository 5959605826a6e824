"""The model registry: register a model, promote and roll back versions, and audit every change."""
