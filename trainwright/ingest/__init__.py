"""The step that turns a source into an immutable snapshot: read in shards, checked, split, committed."""
