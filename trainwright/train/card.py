"""The model card: what a person should know before using a model. The same training gives the same text."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.report import markdown
from trainwright.serving.outputs import Outputs

_KINDS = {
    "mlp": "A multilayer perceptron",
    "ft_transformer": "A transformer with one token a column (Gorishniy et al., NeurIPS 2021)",
    "trees": "Gradient-boosted trees (XGBoost)",
    "lm": "A decoder-only transformer",
}
_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class About:
    """What the card of a model tells.

    Attributes:
        kind: The architecture, such as ``mlp``.
        outputs: What it gives; absent for a model of tokens.
        split: The split it was fitted on.
        data_version: Digest of the training set.
        config: What was asked for: sections ``network`` and ``training``, and ``processes``.
        metrics: Figures of the training, by name.
        inputs: Name, type and reading of each raw column.
        unused: Columns that are not read, with the reason.
        gains: Share of the total gain of each column, for trees.
    """

    kind: str
    outputs: Outputs | None
    split: str
    data_version: str
    config: Mapping[str, Any]
    metrics: Mapping[str, float]
    inputs: Sequence[tuple[str, str, str]] = ()
    unused: Mapping[str, str] = field(default_factory=dict)
    gains: Mapping[str, float] = field(default_factory=dict)


def write_card(path: Path, about: About) -> None:
    """Write the card of a model as Markdown."""
    path.write_text("\n\n".join(part.rstrip() for part in _parts(about)) + "\n")


def _parts(about: About) -> Iterator[str]:
    yield f"# {_title(about)}"
    yield _sentence(about)
    yield "## What it is for"
    yield _purpose(about)
    yield from _data(about)
    yield from _fitting(about)
    yield from _threshold(about)
    yield from _inputs(about)
    yield from _gains(about)
    yield "## Limits"
    yield _limits(about)
    yield "## Use"
    yield _use(about)


def _title(about: About) -> str:
    outputs = about.outputs
    if outputs is None:
        return "The next token"
    label = markdown.escape(outputs.label)
    return f"Prediction of {label}" if outputs.kind == "regression" else f"Probability of {label}"


def _sentence(about: About) -> str:
    what = _KINDS.get(about.kind)
    if what is None:
        what = f"The module `{about.config['network'].get('path', about.kind)}`"
    if about.outputs is None:
        return f"{what} over tokens. It gives the log-probability of every next token."
    label, columns = about.outputs.label, f"{what} over {len(about.inputs)} columns."
    match about.outputs.kind:
        case "regression":
            return f"{columns} Its score is the estimated mean of `{label}`."
        case "multiclass":
            last = about.outputs.classes - 1
            return f"{columns} Its scores are the estimated probabilities that `{label}` is 0, 1, ... {last}."
        case _:
            return f"{columns} Its score is the estimated probability that `{label}` is 1."


def _purpose(about: About) -> str:
    rows = "Text like that" if about.outputs is None else "Rows like those"
    return (
        f"{rows} of data version `{about.data_version[:12]}`, for the decisions that its evaluation had in "
        "view. It says what goes together with what, not what would follow from a change, and nothing of "
        "rows from elsewhere or from a time when things have changed."
    )


def _data(about: About) -> Iterator[str]:
    metrics = about.metrics
    yield "## Data"
    if "rows" not in metrics:
        yield f"Fitted on split `{about.split}`. Data version `{about.data_version}`."
        return
    share = f", of which {metrics['base_rate']:.1%} have label 1" if "base_rate" in metrics else ""
    left_out = f"; {metrics['rows_without_label']:,.0f} rows without a label were left out"
    yield (
        f"Fitted on {metrics['rows']:,.0f} rows of split `{about.split}`{share}{left_out}. Data version "
        f"`{about.data_version}`."
    )


def _fitting(about: About) -> Iterator[str]:
    metrics = about.metrics
    yield "## Training"
    unit = "round" if about.kind == "trees" else "epoch"
    steps = f"{metrics['steps']:,.0f} {'rounds' if about.kind == 'trees' else 'steps'}"
    if (trees := metrics.get("rounds_kept")) not in {None, metrics["steps"]}:
        steps += f", of which the first {trees:,.0f} are kept: the watched split was best after them"
    yield f"{steps}; mean loss of the last {unit} {metrics['train_loss']:.4f}{_measure(about)}."
    settings = {**about.config["network"], **about.config["training"]}
    rows = [*settings.items(), ("processes", about.config["processes"])]
    yield markdown.table(["Setting", "Value"], rows)


def _measure(about: About) -> str:
    if about.outputs is None or "base_rate_loss" not in about.metrics:
        return ""
    always = f"{about.metrics['base_rate_loss']:.4f}"
    if about.outputs.kind == "regression":
        return f" (squared error in units of the label's variance; always answering the mean costs {always})"
    objective = about.config["training"]["objective"]
    name = f"focal loss with exponent {objective['focal']:g}" if objective["focal"] else "cross-entropy"
    alike = "balanced" in (objective["class_weights"], objective["sampling"])
    weighed = ", all classes counting alike" if alike else ""
    return f" ({name}, nats a row{weighed}; always answering the base rate costs {always})"


def _threshold(about: About) -> Iterator[str]:
    outputs = about.outputs
    if outputs is None or outputs.kind != "binary":
        return
    yield "## Threshold"
    if outputs.threshold is None:
        yield "None was chosen: 0.5 is as good as any until somebody says what a miss and a false alarm cost."
        return
    chosen, rule = outputs.threshold, {"f1": "F1", "youden": "true less false positive rate"}
    yield (
        f"A score of at least {chosen.value:.6g} counts as 1: of all thresholds it has the best "
        f"{rule[chosen.rule]} on split `{chosen.split}`, {chosen.gain:.4f}. It is the best of many on that "
        "split, so on others it reaches less."
    )


def _inputs(about: About) -> Iterator[str]:
    if not about.inputs:
        return
    yield "## Inputs"
    yield markdown.table(["Column", "Type", "Read as"], about.inputs)
    if about.unused:
        yield "Columns that told nothing and are not read:"
        yield markdown.table(["Column", "Why"], list(about.unused.items()))


def _gains(about: About) -> Iterator[str]:
    if not about.gains:
        return
    yield "## What the trees split on"
    ordered = sorted(about.gains.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN]
    yield markdown.table(
        ["Column", "Share of the gain"], [(name, f"{gain:.1%}") for name, gain in ordered], numeric=[1]
    )
    yield "A column's gain says what the training used, not what causes the label."


def _limits(about: About) -> str:
    if about.outputs is None:
        return "It knows the tokens it was fitted on. How good it is, the evaluation says."
    objective = about.config["training"]["objective"]
    bent = [name for name in ("class_weights", "sampling") if objective[name] != "none"]
    bent += ["focal"] if objective["focal"] else []
    shares = (
        f"The scores are not frequencies: {' and '.join(bent)} of the objective moved them. They rank rows; "
        "whoever needs probabilities calibrates them. "
        if bent and about.outputs.kind != "regression"
        else ""
    )
    return shares + (
        "Values that were rare or absent in training are treated as unknown, numbers are cut off at 10 "
        "standard deviations or, where they are scaled by quantiles, at the smallest and the largest that "
        "were learned from, and nothing is known of times after the training split. How good the scores "
        "are, overall and by slice, the evaluation says."
    )


def _use(about: About) -> str:
    load = "`trainwright.serving.load(folder).predict(columns)` checks the files, transforms raw columns"
    if about.kind == "trees":
        return (
            f"{load} and scores them; it needs numpy, pyarrow and xgboost, not torch. `model.ubj` alone "
            "takes the matrix that `signature.json` describes (`xgboost.Booster(model_file=...)`)."
        )
    return (
        f"{load} and scores them. `program.pt2` alone takes the tensors that `signature.json` describes "
        "(`torch.export.load`)."
    )
