"""Gradient-boosted trees, by XGBoost: grown here, read and run by :mod:`trainwright.serving.trees`."""
