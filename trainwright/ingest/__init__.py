"""The step that turns a source into an immutable snapshot, split by time."""
