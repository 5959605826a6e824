"""Judge a model's predictions on rows it has not learned from: overall, and slice by slice."""
