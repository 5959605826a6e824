"""Fitting a tabular network to a training set: submitted as a job, run in many processes, kept as a model."""
