"""Read the predictions of one split, pair them with the baseline's, and check that they may be judged."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.artifacts import Record, Snapshot
from trainwright.errors import InputError
from trainwright.evaluate.findings import Floats, Integers, Kind
from trainwright.experiment import Evaluation, Training
from trainwright.lineage import ancestors
from trainwright.significance import roc_area
from trainwright.tables import iter_batches, read_split, require_columns
from trainwright.tables.capacity import warn_of_memory

THRESHOLD = "threshold"
"""Figure of a predictions' manifest: where the model that made them says that label 1 begins."""

_SUM_TO_ONE = 1e-4


@dataclass(frozen=True)
class Predictions:
    """The rows of one split that have a label.

    Attributes:
        kind: What was predicted.
        label: Class from 0 on, number, or 0 of a language model, shape (rows,).
        scores: Probability of label 1 (one column), of every class, an estimate, or a mean loss a token;
            shape (rows, columns).
        weight: Of each row, at least 0; of a language model its tokens; None where all count alike.
        bounds: Low and high end of an interval around the estimate, shape (rows, 2), or None.
        key: Arrow column that identifies rows, or None.
        columns: Arrow columns to slice by, by name, each of shape (rows,).
        label_name: Column of the label; empty of a language model.
        unlabelled: Rows that were left out because they have no label.
        threshold: The model's own threshold, or None.
        snapshot: The manifest.
        constant_loss: Of a language model: mean loss a token of each row by the frequencies of the tokens in
            all rows, shape (rows,); None of other kinds, and where the predictions have no tokens.
    """

    kind: Kind
    label: NDArray[Any]
    scores: Floats
    weight: Floats | None
    bounds: Floats | None
    key: Any
    columns: dict[str, Any]
    label_name: str
    unlabelled: int
    threshold: float | None
    snapshot: Snapshot
    constant_loss: Floats | None = None

    @property
    def rows(self) -> int:
        """Rows with a label."""
        return len(self.label)

    @property
    def weights(self) -> Floats:
        """Weight of each row, 1 where all count alike."""
        return np.ones(self.rows) if self.weight is None else self.weight

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes by number, else their numbers; empty of other kinds."""
        count = {"binary": 2, "multiclass": int(self.scores.shape[1])}.get(self.kind, 0)
        return self.snapshot.target.classes or tuple(map(str, range(count)))


@dataclass(frozen=True)
class _Roles:
    """Columns of the predictions by role."""

    kind: Kind
    scores: tuple[str, ...]
    label: str
    key: str
    weight: str
    bounds: tuple[str, ...]
    tokens: str = ""

    @property
    def names(self) -> list[str]:
        named = (self.key, self.label, self.weight, *self.scores, *self.bounds, self.tokens)
        return [name for name in named if name]

    @property
    def meaning(self) -> str:
        """Describe the values of a label."""
        classes = f"a class from 0 to {len(self.scores) - 1}"
        return {"regression": "a number", "binary": "0 or 1"}.get(self.kind, classes)


def read_predictions(
    folder: Path, snapshot: Snapshot, split: str, columns: Sequence[str], where: str = "predictions"
) -> Predictions:
    """Read the predictions of one split whole.

    Raises:
        InputError: A column or the split is missing, a weight is negative, or a score is missing or is not
            what its kind allows.
    """
    names = names_to_read(snapshot, columns, where := f"{where}, split {split!r}")
    values = snapshot.splits.get(split, 0) * len(names)
    warn_of_memory("evaluate", values, "Give the step more memory, or judge a smaller evaluation.split.")
    return to_predictions(read_split(folder, snapshot, split, names), snapshot, columns, where)


def names_to_read(snapshot: Snapshot, columns: Sequence[str], where: str) -> list[str]:
    """Return the columns of the roles and ``columns``, all of which the snapshot has."""
    roles = roles_of(snapshot)
    names = list(dict.fromkeys([*roles.names, *columns]))
    require_columns(snapshot, set(names), where)
    _require_names_of_scores(snapshot, roles, where)
    return names


def to_predictions(table: Any, snapshot: Snapshot, columns: Sequence[str], where: str) -> Predictions:
    """Return the rows of a table that have a label."""
    roles = roles_of(snapshot)
    known = table.filter(pc.is_valid(table[roles.label])) if roles.label else table
    weight = _weight(known, roles.weight, where) if roles.weight else None
    return Predictions(
        kind=roles.kind,
        label=_label(known, roles, where),
        scores=_scores(known, roles, where),
        weight=weight,
        bounds=_numbers(known, roles.bounds, where) if roles.bounds else None,
        key=known[roles.key] if roles.key else None,
        columns={name: known[name] for name in columns},
        label_name=roles.label,
        unlabelled=table.num_rows - known.num_rows,
        threshold=snapshot.quality.get(THRESHOLD),
        snapshot=snapshot,
        constant_loss=_token_losses(known[roles.tokens], weight) if roles.tokens else None,
    )


def _require_names_of_scores(snapshot: Snapshot, roles: _Roles, where: str) -> None:
    """Reject predictions whose classes have more or fewer names than scores."""
    named = snapshot.target.classes
    count = {"binary": 2, "multiclass": len(roles.scores)}.get(roles.kind, 0)
    if named and len(named) != count:
        raise InputError(
            f"the manifest names {len(named)} classes, {', '.join(named[:10])}; the scores are of "
            f"{count} ({', '.join(roles.scores[:10])})",
            where=where,
            hint="Score the rows with a model of this target: the step that wrote them passes it on.",
        )


def _token_losses(column: Any, scored: Floats | None) -> Floats | None:
    """Return the loss of each row if every token is predicted by its frequency, a mean over scored tokens.

    The tokens of a text are its bytes; the last ``scored`` tokens of a row are those that have a loss.
    """
    column = column.combine_chunks()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
        lists = [np.frombuffer(value.as_py() or b"", np.uint8) for value in column]
        lengths = np.array([len(entry) for entry in lists], np.int64)
        tokens: NDArray[Any] = np.concatenate(lists) if lists else np.empty(0, np.uint8)
    else:
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        tokens = column.flatten().to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    if scored is not None:
        from_end = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(tokens))
        counted = from_end <= scored[rows]
        rows, tokens = rows[counted], tokens[counted]
    if not len(tokens):
        return None
    _, token, count = np.unique(tokens, return_inverse=True, return_counts=True)
    losses = -np.log(count / len(tokens))[token.ravel()]
    number = np.bincount(rows, minlength=len(lengths))
    total = np.bincount(rows, weights=losses, minlength=len(lengths))
    found: Floats = total / np.maximum(number, 1)
    return found


def roles_of(snapshot: Snapshot) -> _Roles:
    """Return what was predicted: the roles of the columns tell."""
    roles = snapshot.roles
    classes = sorted((role for role in roles if re.fullmatch(r"score_\d+", role)), key=lambda x: int(x[6:]))
    weight = roles.get("weight", "")
    bounds: tuple[str, ...] = ()
    names = {column.name for column in snapshot.columns}
    label = roles.get("label", "label")
    kind: Kind = "binary"
    scores: tuple[str, ...] = (roles.get("score", "score"),)
    text = ""
    if "loss" in roles:
        tokens = roles.get("tokens_scored", "tokens_scored" if "tokens_scored" in names else weight)
        kind, scores, label, weight = "language_model", (roles["loss"],), "", tokens
        text = roles["tokens"] if roles.get("tokens") in names else ""
    elif classes:
        kind, scores = "multiclass", tuple(roles[role] for role in classes)
    elif "estimate" in roles:
        kind, scores = "regression", (roles["estimate"],)
        bounds = tuple(roles[end] for end in ("estimate_low", "estimate_high") if end in roles)
    return _Roles(kind, scores, label, roles.get("key", ""), weight, bounds if len(bounds) > 1 else (), text)


def _label(known: Any, roles: _Roles, where: str) -> NDArray[Any]:
    name = roles.label
    if not name:
        return np.zeros(known.num_rows, np.int64)
    values = _numeric(known[name], f"label {name!r}", roles.meaning, where)
    if roles.kind == "regression":
        return values
    allowed = np.isin(values, np.arange(len(roles.scores) if roles.kind == "multiclass" else 2))
    if not allowed.all():
        raise InputError(
            f"label {name!r} holds {np.unique(values[~allowed])[:5].tolist()}; a label is {roles.meaning}",
            where=f"{where}, row {int(allowed.argmin()):,}",
        )
    return values.astype(np.int64)


def _numeric(column: Any, what: str, meaning: str, where: str) -> Floats:
    kind = column.type
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise InputError(f"{what} has type {kind}; it is {meaning}", where=where)
    values: Floats = column.cast(pa.float64()).to_numpy().astype(np.float64)
    if missing := int((~np.isfinite(values)).sum()):
        raise InputError(f"{missing:,} of {len(values):,} values of {what} are not numbers", where=where)
    return values


def _numbers(known: Any, names: Sequence[str], where: str) -> Floats:
    """Read columns of floats, all finite, shape (rows, columns)."""
    columns = []
    for name in names:
        column = known[name]
        if not pa.types.is_floating(column.type):
            raise InputError(f"score {name!r} has type {column.type}; a score is a float", where=where)
        values: Floats = column.cast(pa.float64()).to_numpy()
        wrong = np.flatnonzero(~np.isfinite(values))
        if len(wrong):
            raise InputError(
                f"{len(wrong):,} of {len(values):,} scores in {name!r} are not numbers",
                where=f"{where}, first in row {int(wrong[0]):,}",
                hint="The training diverged, or an input is missing where the model cannot take it.",
            )
        columns.append(values)
    return np.stack(columns, axis=1)


def _scores(known: Any, roles: _Roles, where: str) -> Floats:
    scores = _numbers(known, roles.scores, where)
    if not len(scores):
        return scores
    low, high = float(scores.min()), float(scores.max())
    if roles.kind == "language_model" and low < 0:
        raise InputError(f"losses in {roles.scores[0]!r} begin at {low:.4g}; none is below 0", where=where)
    if roles.kind not in ("binary", "multiclass"):
        return scores
    if low < 0 or high > 1:
        wrong = int(np.flatnonzero(((scores < 0) | (scores > 1)).any(axis=1))[0])
        named = roles.scores[0] if len(roles.scores) == 1 else f"{roles.scores[0]} to {roles.scores[-1]}"
        raise InputError(
            f"scores in {named!r} lie in [{low:.4g}, {high:.4g}]; a score is a probability in [0, 1]",
            where=f"{where}, first in row {wrong:,}",
            hint="Write probabilities, not logits.",
        )
    total = scores.sum(axis=1)
    off = np.flatnonzero(np.abs(total - 1) > _SUM_TO_ONE)
    if roles.kind == "multiclass" and len(off):
        raise InputError(
            f"the scores of {len(off):,} of {len(scores):,} rows do not add up to 1; the first to "
            f"{total[off[0]]:.4g}",
            where=f"{where}, row {int(off[0]):,}",
            hint="Write the probabilities of all classes.",
        )
    return scores


def _weight(known: Any, name: str, where: str) -> Floats:
    weight = _numeric(known[name], f"weight {name!r}", "a number of at least 0", where)
    negative = np.flatnonzero(weight < 0)
    if len(negative):
        raise InputError(
            f"{len(negative):,} of {len(weight):,} weights in {name!r} are negative; the smallest is "
            f"{weight.min():.4g}",
            where=f"{where}, first in row {int(negative[0]):,}",
        )
    return weight


MIN_OVERLAP = 0.999
"""Smallest share of either model's rows that the other must have scored too."""

BASELINE = "baseline"
_AGAIN = "Let the baseline score the rows of the candidate: the step score does."


@dataclass(frozen=True)
class PredictionPair:
    """The rows that both models scored, in the candidate's order; without a baseline all of them.

    ``unmatched`` counts rows of either model that the other did not score.
    """

    candidate: Predictions
    baseline: Predictions | None = None
    unmatched: int = 0


def pair(candidate: Predictions, baseline: Predictions | None) -> PredictionPair:
    """Put two models' predictions of the same rows of the same data side by side, matched by key."""
    if baseline is None:
        return PredictionPair(candidate)
    _require_comparable(candidate, baseline)
    if not candidate.key.type.equals(baseline.key.type):
        raise InputError(
            f"keys of type {baseline.key.type} cannot be matched with keys of type {candidate.key.type}",
            where=BASELINE,
        )
    if candidate.key.equals(baseline.key):
        return _same_rows(candidate, baseline)
    place = pc.index_in(candidate.key.combine_chunks(), value_set=baseline.key.combine_chunks())
    matched = place.is_valid().to_numpy(zero_copy_only=False)
    both, most = int(matched.sum()), max(candidate.rows, baseline.rows)
    if both < MIN_OVERLAP * most:
        raise InputError(
            f"only {both:,} of {most:,} rows ({both / most:.2%}) were scored by both models; "
            f"{MIN_OVERLAP:.1%} are needed to compare them",
            where=BASELINE,
            hint=_AGAIN,
        )
    ours = take(candidate, np.flatnonzero(matched))
    theirs = take(baseline, place.drop_null().to_numpy().astype(np.int64))
    return _same_rows(ours, theirs, candidate.rows + baseline.rows - 2 * both)


def _same_rows(ours: Predictions, theirs: Predictions, unmatched: int = 0) -> PredictionPair:
    _require_same_labels(ours, theirs)
    # It is the rows that have weights, not the models.
    return PredictionPair(ours, replace(theirs, weight=ours.weight), unmatched)


def _require_comparable(candidate: Predictions, baseline: Predictions) -> None:
    if candidate.kind != baseline.kind or candidate.scores.shape[1] != baseline.scores.shape[1]:
        raise InputError(
            f"the baseline predicts {_describe_kind(baseline)}, the candidate {_describe_kind(candidate)}",
            where=BASELINE,
        )
    named = [entry.snapshot.target.classes for entry in (candidate, baseline)]
    if all(named) and named[0] != named[1]:
        raise InputError(
            f"the classes of the baseline are {', '.join(named[1][:10])}, in this order, those of the "
            f"candidate {', '.join(named[0][:10])}",
            where=BASELINE,
            hint=_AGAIN,
        )
    ours, theirs = (entry.snapshot.parents.get("training_set") for entry in (candidate, baseline))
    if ours and theirs and ours != theirs:
        raise InputError(
            f"the baseline scored rows of data {theirs[:12]}, the candidate of {ours[:12]}; "
            "numbers of different data are never compared",
            where=BASELINE,
            hint=_AGAIN,
        )
    if candidate.key is None or baseline.key is None:
        raise InputError(
            "predictions without a key cannot be matched row by row",
            where=BASELINE,
            hint="Name the key: data.key, or the role key of the snapshot.",
        )


def _describe_kind(predictions: Predictions) -> str:
    many = f" of {predictions.scores.shape[1]} classes" if predictions.kind == "multiclass" else ""
    return f"{predictions.kind}{many}"


def _require_same_labels(ours: Predictions, theirs: Predictions) -> None:
    what = "labels"
    differ = np.flatnonzero(ours.label != theirs.label)
    if ours.kind == "language_model":
        what, differ = "numbers of tokens", np.flatnonzero(ours.weights != theirs.weights)
    if len(differ):
        first = int(differ[0])
        raise InputError(
            f"{len(differ):,} of {ours.rows:,} rows have other {what} in the baseline's predictions; "
            f"the first has key {ours.key[first].as_py()!r}",
            where=BASELINE,
            hint=_AGAIN,
        )


def take(predictions: Predictions, rows: Integers) -> Predictions:
    """Return some rows of predictions with a key, in the order of ``rows``."""
    if len(rows) == predictions.rows and bool((rows == np.arange(len(rows))).all()):
        return predictions
    index, weight, bounds = pa.array(rows), predictions.weight, predictions.bounds
    constant = predictions.constant_loss
    return replace(
        predictions,
        label=predictions.label[rows],
        scores=predictions.scores[rows],
        weight=None if weight is None else weight[rows],
        bounds=None if bounds is None else bounds[rows],
        constant_loss=None if constant is None else constant[rows],
        key=predictions.key.take(index),
        columns={name: column.take(index) for name, column in predictions.columns.items()},
    )


_DEFAULT = str(Training.model_fields["split"].default)


def require_held_out(folder: Path, evaluation: Evaluation) -> None:
    """Check that the evaluated split had no part in making the model.

    Neither the rows that it was fitted on, nor those that its training looked at to end, and to choose its
    weights and its threshold: the best of many looks is better there than it will be anywhere else (Cawley
    and Talbot, Journal of Machine Learning Research 11, 2010). The record beside the predictions names both.
    Where there is none, a split of the name that a training learns from by default is rejected.
    """
    records = ancestors([Record.read(folder)]) if (folder / Record.FILE).exists() else []
    sections = [record.config.get("training") for record in records]
    trainings = [section for section in sections if isinstance(section, dict)]
    why = (
        {}
        if trainings
        else {_DEFAULT: "is what a model is fitted on, and no record beside the predictions says another"}
    )
    for training in trainings:
        watched = (training.get("guards") or {}).get("early_stopping") or {}
        if watched.get("split"):
            why[str(watched["split"])] = "ended the training, and chose the model"
    for training in trainings:
        why[str(training.get("split", _DEFAULT))] = "is what the model was fitted on"
    if evaluation.split in why:
        raise InputError(
            f"split {evaluation.split!r} {why[evaluation.split]}: "
            "it does not tell how good the model is on rows that are new",
            where="evaluation.split",
            hint="Judge a split that had no part in the training; data.splits and training.predict name it.",
        )


SUSPICIOUS = 0.99
"""Area under the ROC curve of a single column above which a person should look."""

MOST_ROWS = 50_000
"""Rows that are looked at: of so many an area is known to 0.005 and better."""

_MIN_CLASS_ROWS = 30
_MOST_NAMES = 50


def suspicious_columns(folder: Path, snapshot: Snapshot, split: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return a warning for each column, but the ``known`` ones, that alone ranks a label of 0 and 1.

    A number ranks as it is, upwards or downwards; a name by how often the label is 1 with it, in the half of
    the rows that it is not measured on. It warns, and decides nothing: such a column may be right.
    """
    label_name = snapshot.roles.get("label", "label")
    names = [column.name for column in snapshot.columns if column.name not in known]
    read = list(dict.fromkeys([label_name, *names]))
    labelled = sum(
        len(batch) - batch.column(0).null_count
        for batch in iter_batches(folder, snapshot, [split], [label_name])
    )
    sampled = min(labelled, MOST_ROWS)
    rows = np.sort(np.random.default_rng(0).choice(labelled, sampled, replace=False))
    chosen, start = list[Any](), 0
    for batch in iter_batches(folder, snapshot, [split], read):
        labelled_rows = batch.filter(batch.column(0).is_valid())
        inside = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + len(labelled_rows))]
        chosen.append(labelled_rows.take(pa.array(inside - start)))
        start += len(labelled_rows)
    if not labelled:
        return ()
    table = pa.Table.from_batches(chosen).combine_chunks()
    label = table[label_name].cast(pa.float64()).to_numpy().astype(np.int64)
    areas = {name: _column_auc(table[name], label) for name in names}
    return tuple(
        f"column {name!r} alone tells {label_name} with an AUC of {area:.4f}: "
        "is it known when the model is asked?"
        for name, area in areas.items()
        if area > SUSPICIOUS
    )


def _column_auc(column: Any, label: Integers) -> float:
    """Return the area of a column, at least 0.5; 0 where it has none."""
    known = pc.is_valid(column).to_numpy()
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        values: Floats = column.filter(pa.array(known)).cast(pa.float64(), safe=False).to_numpy()
        truth = label[known]
        finite = np.isfinite(values)
        values, truth = values[finite], truth[finite]
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        values, truth = _target_encode(column.filter(pa.array(known)), label[known])
    else:
        return 0.0
    if min(int(truth.sum()), int(len(truth) - truth.sum())) < _MIN_CLASS_ROWS:
        return 0.0
    area = roc_area(truth, values)
    return max(area, 1 - area)


def _target_encode(column: Any, label: Integers) -> tuple[Floats, Integers]:
    """Rate every name by the label of the even rows, and return the odd rows' rates and labels."""
    coded = column.combine_chunks().dictionary_encode()
    names = len(coded.dictionary)
    if names > _MOST_NAMES or not len(label):
        return np.zeros(0), label[:0]
    code = coded.indices.to_numpy(zero_copy_only=False)
    rows = np.bincount(code[::2], minlength=names)
    rate = (np.bincount(code[::2], weights=label[::2], minlength=names) + 0.5) / (rows + 1)
    return rate[code[1::2]], label[1::2]


def largest_difference(first: Path, second: Path) -> float:
    """Return the largest absolute difference of two predictions of one row; infinite if the rows differ.

    Raises:
        InputError: A folder holds no predictions, or a file of them was changed.
    """
    one, other = Snapshot.read(first), Snapshot.read(second)
    roles = roles_of(one)
    if roles != roles_of(other) or one.splits != other.splits:
        return math.inf
    largest = 0.0
    for split in one.splits:
        names = [name for name in (roles.key, *roles.scores) if name]
        tables = [read_split(first, one, split, names), read_split(second, other, split, names)]
        if roles.key and not tables[0][roles.key].equals(tables[1][roles.key]):
            return math.inf
        for name in roles.scores:
            apart = pc.abs(pc.subtract(*(table[name].cast(pa.float64()) for table in tables)))
            largest = max(largest, pc.max(apart).as_py() or 0.0)
    return largest
