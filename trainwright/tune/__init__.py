"""Hyperparameter search: trials on the launcher of ``train``, and a confirmed winner."""
