"""Gradient-boosted trees, by XGBoost: the same snapshot, the same fitted transforms, a model's folder.

Loading and scoring need neither torch nor the rest of the trainer.
"""

from trainwright.train.trees.predictor import TreesPredictor, load_trees

__all__ = ["TreesPredictor", "load_trees"]
