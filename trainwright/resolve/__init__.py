"""The step that looks at a source and says which bytes it holds now."""
