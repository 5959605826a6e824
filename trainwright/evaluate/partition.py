"""Sums by the slices of a grouping: of features, by drawn unit, and of what ranks the rows."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trainwright.evaluate.evaluation_data import EvaluationData, Sums, is_class, sides
from trainwright.evaluate.findings import Floats, Integers
from trainwright.evaluate.groupings import Grouping
from trainwright.evaluate.predictions import PredictionPair, Predictions
from trainwright.evaluate.rows import Partial
from trainwright.significance import (
    Cells,
    Placements,
    Ranking,
    delong_covariance,
    effective_count,
    rank,
    units_covariance,
)

WHOLE: tuple[str, ...] = ()
"""The grouping of all rows."""

_DENSE = 1 << 21
"""Cells that are kept as an array; of more, only those that have rows."""

Groupings = Mapping[tuple[str, ...], Grouping]


@dataclass(frozen=True)
class ModelSums:
    """The sums of one model by part: in the data, in every draw, and with one unit left out in turn.

    ``left_out`` is None where blocks of rows are drawn; ``units`` is the number of rows, or clusters.
    """

    total: Sums
    drawn: Sums
    left_out: Sums | None
    units: int

    def effective(self, total: Floats, drawn: Floats) -> Floats:
        """Return as how many units alike a sum of weights counts, shape (parts,).

        Where rows have weights, or come in clusters, the sum of few of them varies from draw to draw as much
        as that of so many alike (Kish, Survey Sampling, 1965, section 11.7). ``total`` is the sum in the
        data, ``drawn`` in every draw, shape (draws, parts).
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            varied = np.var(drawn, axis=0) / total**2
        found: Floats = np.maximum(1 / (np.where(total > 0, varied, 1.0) + 1 / self.units), 1.0)
        return found


def part_of(grouping: Grouping | None, rows: Predictions) -> Integers:
    """Return the part of each row, shape (rows,)."""
    return np.zeros(rows.rows, np.int64) if grouping is None else grouping.assign(rows.columns)


def parts_of(grouping: Grouping | None) -> int:
    """Return the number of parts."""
    return 1 if grouping is None else len(grouping.names)


def rankings_of(data: EvaluationData, columns: tuple[str, ...]) -> range:
    """Return the columns of the scores that rank rows: of several classes over all rows only."""
    ranked = data.kind == "binary" or (data.kind == "multiclass" and columns == WHOLE)
    return range(data.candidate.predictions.scores.shape[1] if ranked else 0)


def cell_of(
    data: EvaluationData, model: Predictions, side: int, column: int, part: Integers, parts: int
) -> tuple[Integers, int]:
    """Return the cell of each row, as in :class:`Ranking`, and the number of steps."""
    steps = data.scores(side, column, parts)
    label = is_class(model, column).astype(np.int64)
    return (part * steps.steps + steps.step_of(model.scores[:, column])) * 2 + label, steps.steps


def take_sums(pair: PredictionPair, piece: int, data: EvaluationData, groupings: Groupings) -> Partial:
    """Return the sums of some rows by part of every grouping."""
    rows, features, unit = pair.candidate, data.features(pair), data.unit(pair.candidate, piece)
    weight, classes = rows.weights, max(1, data.classes)
    label = rows.label if data.classes else np.zeros(rows.rows, np.int64)
    found: Partial = {}
    for columns, grouping in {WHOLE: None, **groupings}.items():
        part, parts = part_of(grouping, rows), parts_of(grouping)
        for side, (model, summed) in enumerate(zip(sides(pair), features, strict=True)):
            sums = data.sampler.add_up(unit, part, parts, list(summed.values()))
            found[f"sums/{columns}/{side}"] = sums
            for column in rankings_of(data, columns):
                cell, steps = cell_of(data, model, side, column, part, parts)
                found[f"cells/{columns}/{side}/{column}"] = (
                    np.bincount(cell, weights=weight, minlength=parts * steps * 2)
                    if parts * steps * 2 <= _DENSE
                    else Cells.add_up(cell, [weight])
                )
        of_class = part * classes + label
        found[f"classes/{columns}"] = np.stack(
            [
                np.bincount(of_class, weights=value, minlength=parts * classes)
                for value in (np.ones(rows.rows), weight, weight**2)
            ]
        ).reshape(3, parts, classes)
        if data.clustered:
            found[f"members/{columns}"] = Cells.add_up(of_class * data.units + data.clusters(rows), [weight])
        if pair.baseline:
            differ = (rows.scores != pair.baseline.scores).any(axis=1)
            found[f"different/{columns}"] = np.bincount(part[differ], minlength=parts)
            if data.exact and data.classes:
                found[f"agreed/{columns}"] = np.stack(
                    [np.bincount(part, weights=both, minlength=parts) for both in _agreements(*features)]
                )
    return found


AGREEMENTS = ("accuracy", "recall", "false_positive_rate", "selection_rate")
"""Metrics of two classes that are compared row by row; of more classes, the first alone."""


def _agreements(ours: Mapping[str, Floats], theirs: Mapping[str, Floats]) -> list[Floats]:
    """Return where both models succeed, in the order of :data:`AGREEMENTS`; each of shape (rows,)."""
    if "selected" not in ours:
        right = [
            np.sum([column for name, column in model.items() if name.startswith("hits/")], axis=0)
            for model in (ours, theirs)
        ]
        return [right[0] * right[1]]
    label, selected = ours["positives"], ours["selected"] * theirs["selected"]
    right = [(model["selected"] == label).astype(np.float64) for model in (ours, theirs)]
    return [right[0] * right[1], selected * label, selected * (1 - label), selected]


Rankings = dict[str, list[Ranking]]
"""Rankings by grouping and column of the scores, of each model."""


def rank_parts(data: EvaluationData, groupings: Groupings, sums: Partial) -> Rankings:
    """Rank the rows of every part by the merged results of :func:`take_sums`."""
    found: Rankings = {}
    for columns, grouping in {WHOLE: None, **groupings}.items():
        parts = parts_of(grouping)
        for column in rankings_of(data, columns):
            found[f"{columns}/{column}"] = []
            for side in range(len(data.sides)):
                cells = sums[f"cells/{columns}/{side}/{column}"]
                if not isinstance(cells, Cells):
                    ids = np.flatnonzero(cells)
                    cells = Cells(ids, cells[ids, None])
                steps = data.scores(side, column, parts).steps
                found[f"{columns}/{column}"].append(rank(cells, steps, parts))
    return found


@dataclass(frozen=True)
class RankRequest:
    """The request of :func:`take_products`."""

    data: EvaluationData
    groupings: Groupings
    rankings: Rankings


def take_products(pair: PredictionPair, _: int, request: RankRequest) -> Partial:
    """Return the products of what rows add to the areas of their part, by label, or sums by cluster.

    Products have shape (parts, labels, models, models); ``mean`` is of the mean over all classes.
    """
    data, rows, weight = request.data, pair.candidate, pair.candidate.weights
    found: Partial = {}
    for columns, grouping in {WHOLE: None, **request.groupings}.items():
        part, parts = part_of(grouping, rows), parts_of(grouping)
        each = []
        for column in rankings_of(data, columns):
            added = np.stack(
                [
                    weight * ranking.of(cell_of(data, model, side, column, part, parts)[0])
                    for side, (model, ranking) in enumerate(
                        zip(sides(pair), request.rankings[f"{columns}/{column}"], strict=True)
                    )
                ]
            )
            added = np.nan_to_num(added)  # of a part that lacks a label
            each.append((f"{columns}/{column}", added, is_class(rows, column)))
        defined = [added for name, added, _ in each if not np.isnan(request.rankings[name][0].area).all()]
        if data.kind == "multiclass" and columns == WHOLE and defined:
            each.append(("mean", np.mean(defined, axis=0), np.zeros(rows.rows, np.bool_)))
        for name, added, positive in each:
            if data.clustered:
                cell = part * data.units + data.clusters(rows)
                found[name] = Cells.add_up(cell, list(added))
                continue
            cell, models = part * 2 + positive, len(added)
            products = [
                np.bincount(cell, weights=added[i] * added[j], minlength=parts * 2)
                for i in range(models)
                for j in range(models)
            ]
            found[name] = np.stack(products, axis=-1).reshape(parts, 2, models, models)
    return found


@dataclass(frozen=True)
class Partition:
    """The rows of a grouping's parts, as merged sums.

    Attributes:
        parts: Number of parts.
        tallies: Sums of features of each model.
        counts: Rows by part and class (or all), shape (parts, classes).
        weights: Sums of weights, and of their squares, shape (2, parts, classes).
        members: Weights by part, class and cluster; None without clusters.
        agreed: Rows in which both models succeed, shape (metrics, parts); None where they are not counted.
        different: Rows in which the models' scores differ, shape (parts,); None without a baseline.
        rankings: Of each model, by column of the scores.
        products: As :func:`take_products` returns them, by column of the scores.
    """

    data: EvaluationData
    parts: int
    tallies: tuple[ModelSums, ...]
    counts: Integers
    weights: Floats
    members: Cells | None
    agreed: Floats | None
    different: Integers | None
    rankings: tuple[list[Ranking], ...]
    products: tuple[Floats | Cells, ...]

    @property
    def rows(self) -> Integers:
        """Rows of each part, shape (parts,)."""
        found: Integers = self.counts.sum(axis=1)
        return found

    def units(self, of_class: int | None = None) -> Integers:
        """Return how many clusters, or without clusters rows, each part has, of a class or of all."""
        if self.members is None:
            return self.rows if of_class is None else self.counts[:, of_class]
        cell, classes = self.members.ids // self.data.units, self.counts.shape[1]
        if of_class is not None:
            return np.bincount(cell, minlength=self.parts * classes).reshape(self.parts, -1)[:, of_class]
        met = np.unique(cell // classes * self.data.units + self.members.ids % self.data.units)
        return np.bincount(met // self.data.units, minlength=self.parts)

    def pairs(self, part: int, of_class: int) -> float:
        """Return as many independent pairs of a row of a class and another as there are, by Kish."""
        if self.members is None:
            weights = self.weights[:, part]
            sums = [weights[:, of_class], weights.sum(axis=1) - weights[:, of_class]]
            return min(effective_count(float(total), float(squares)) for total, squares in sums)
        cell = self.members.ids // self.data.units
        classes = self.counts.shape[1]
        inside = cell // classes == part
        positive = cell[inside] % classes == of_class
        _, unit = np.unique(self.members.ids[inside] % self.data.units, return_inverse=True)
        weight = self.members.values[inside, 0]
        of_units = [np.bincount(unit.ravel(), weights=weight * side) for side in (positive, ~positive)]
        return min(effective_count(float(side.sum()), float(np.sum(side**2))) for side in of_units)

    def placements(self, part: int, column: int | None = 0) -> Placements:
        """Return the areas of a part; those of a column of the scores, or their mean over all."""
        data = self.data
        index = -1 if column is None else column
        ranked = self.rankings if column is None else (self.rankings[column],)
        known = [entry for entry in ranked if not np.isnan(entry[0].area[part])]
        area = np.mean([[model.area[part] for model in entry] for entry in known], axis=0)
        products, of_class = self.products[index], 1 if data.kind == "binary" else index
        same = self.different is not None and not self.different[part]
        if isinstance(products, Cells):
            rows = products.values[products.ids // data.units == part]
            covariance = units_covariance(rows.T @ rows, len(rows))
        elif data.exact and data.kind == "binary":
            covariance = delong_covariance(products[part], self.counts[part].astype(np.float64))
        else:
            covariance = units_covariance(products[part].sum(axis=0), int(self.rows[part]))
        if column is None:
            of_classes = [k for k, entry in enumerate(self.rankings) if not np.isnan(entry[0].area[part])]
            pairs = min(self.pairs(part, k) for k in of_classes)
        else:
            pairs = self.pairs(part, of_class)
        return Placements(area, covariance, pairs, same)

    def rank_error(self, part: int, column: int = 0) -> float:
        """Return by how much an area may be off because scores share a step."""
        return max(float(model.unsure[part]) / 2 for model in self.rankings[column])


def build_partition(
    data: EvaluationData,
    columns: tuple[str, ...],
    grouping: Grouping | None,
    sums: Partial,
    rankings: Rankings,
    products: Partial,
) -> Partition:
    """Return a grouping's parts from the merged results."""
    tallies = []
    for side, names in enumerate(data.feature_names):
        added = sums[f"sums/{columns}/{side}"]
        total = added.sum(axis=0)
        left_out = Sums(names, total, added) if data.skewed else None
        drawn = Sums(names, data.sampler.draw(added))
        tallies.append(ModelSums(Sums(names, total), drawn, left_out, data.units))
    ranked = rankings_of(data, columns)
    classes = sums[f"classes/{columns}"]
    mean = [products["mean"]] if columns == WHOLE and "mean" in products else []
    return Partition(
        data=data,
        parts=parts_of(grouping),
        tallies=tuple(tallies),
        counts=classes[0].astype(np.int64),
        weights=classes[1:],
        members=sums.get(f"members/{columns}"),
        agreed=sums.get(f"agreed/{columns}"),
        different=sums.get(f"different/{columns}"),
        rankings=tuple(rankings[f"{columns}/{column}"] for column in ranked),
        products=(*(products[f"{columns}/{column}"] for column in ranked), *mean),
    )
