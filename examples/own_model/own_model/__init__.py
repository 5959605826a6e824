"""A model of one's own: a package like any other, that knows nothing of how it is trained."""
