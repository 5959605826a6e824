"""Metrics of a trial on the held-out rows."""

import numpy as np

from trainwright.train.trainers import area_under_curve


def test_area_under_curve_counts_ties_half() -> None:
    labels, scores = np.array([0, 0, 1, 1]), np.array([0.1, 0.5, 0.5, 0.9])
    assert area_under_curve(labels, scores) == 3.5 / 4


def test_area_under_curve_of_one_class_is_one_half() -> None:
    assert area_under_curve(np.array([1, 1]), np.array([0.2, 0.3])) == 0.5
