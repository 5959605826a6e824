"""The step that loads a model in a clean process and asks it for scores, before it counts."""
