"""Gradient-boosted trees, by XGBoost: trained here, read and scored by :mod:`trainwright.serving.trees`."""

from trainwright.train.trees.boosting import TrainedTrees, train_trees

__all__ = ["TrainedTrees", "train_trees"]
