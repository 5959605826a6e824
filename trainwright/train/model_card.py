"""The model card, as Markdown. Its bytes are part of the model's digest: changing a word changes it."""

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
class CardFacts:
    """The facts on a model card.

    Attributes:
        kind: The architecture, such as ``mlp``.
        outputs: Outputs of the model; None for a language model.
        split: The split it was fitted on.
        data_version: Digest of the training set.
        config: Sections ``network`` and ``training``, and ``processes``.
        metrics: Figures of the training, by name.
        inputs: Name, type and kind of each raw column.
        unused: Columns that the model does not read, with the reason.
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


def write_card(path: Path, facts: CardFacts) -> None:
    """Write the card of a model as Markdown."""
    path.write_text("\n\n".join(part.rstrip() for part in _parts(facts)) + "\n")


def _parts(facts: CardFacts) -> Iterator[str]:
    yield f"# {_title(facts)}"
    yield _sentence(facts)
    yield "## What it is for"
    yield _purpose(facts)
    yield from _data(facts)
    yield from _fitting(facts)
    yield from _threshold(facts)
    yield from _inputs(facts)
    yield from _gains(facts)
    yield "## Limits"
    yield _limits(facts)
    yield "## Use"
    yield _use(facts)


def _title(facts: CardFacts) -> str:
    outputs = facts.outputs
    if outputs is None:
        return "The next token"
    label = markdown.escape(outputs.label)
    return f"Prediction of {label}" if outputs.kind == "regression" else f"Probability of {label}"


def _sentence(facts: CardFacts) -> str:
    what = _KINDS.get(facts.kind)
    if what is None:
        what = f"The module `{facts.config['network'].get('path', facts.kind)}`"
    if facts.outputs is None:
        return f"{what} over tokens. It gives the log-probability of every next token."
    label, columns = facts.outputs.label, f"{what} over {len(facts.inputs)} columns."
    match facts.outputs.kind:
        case "regression":
            return f"{columns} Its score is the estimated mean of `{label}`."
        case "multiclass":
            last = facts.outputs.classes - 1
            return f"{columns} Its scores are the estimated probabilities that `{label}` is 0, 1, ... {last}."
        case _:
            return f"{columns} Its score is the estimated probability that `{label}` is 1."


def _purpose(facts: CardFacts) -> str:
    rows = "Text like that" if facts.outputs is None else "Rows like those"
    return (
        f"{rows} of data version `{facts.data_version[:12]}`, for the decisions that its evaluation had in "
        "view. It says what goes together with what, not what would follow from a change, and nothing of "
        "rows from elsewhere or from a time when things have changed."
    )


def _data(facts: CardFacts) -> Iterator[str]:
    metrics = facts.metrics
    yield "## Data"
    if "rows" not in metrics:
        yield f"Fitted on split `{facts.split}`. Data version `{facts.data_version}`."
        return
    share = f", of which {metrics['base_rate']:.1%} have label 1" if "base_rate" in metrics else ""
    left_out = f"; {metrics['rows_without_label']:,.0f} rows without a label were left out"
    yield (
        f"Fitted on {metrics['rows']:,.0f} rows of split `{facts.split}`{share}{left_out}. Data version "
        f"`{facts.data_version}`."
    )


def _fitting(facts: CardFacts) -> Iterator[str]:
    metrics = facts.metrics
    yield "## Training"
    unit = "round" if facts.kind == "trees" else "epoch"
    steps = f"{metrics['steps']:,.0f} {'rounds' if facts.kind == 'trees' else 'steps'}"
    if (trees := metrics.get("rounds_kept")) not in {None, metrics["steps"]}:
        steps += f", of which the first {trees:,.0f} are kept: the watched split was best after them"
    yield f"{steps}; mean loss of the last {unit} {metrics['train_loss']:.4f}{_measure(facts)}."
    settings = {**facts.config["network"], **facts.config["training"]}
    rows = [*settings.items(), ("processes", facts.config["processes"])]
    yield markdown.table(["Setting", "Value"], rows)


def _measure(facts: CardFacts) -> str:
    if facts.outputs is None or "base_rate_loss" not in facts.metrics:
        return ""
    always = f"{facts.metrics['base_rate_loss']:.4f}"
    if facts.outputs.kind == "regression":
        return f" (squared error in units of the label's variance; always answering the mean costs {always})"
    objective = facts.config["training"]["objective"]
    name = f"focal loss with exponent {objective['focal']:g}" if objective["focal"] else "cross-entropy"
    alike = "balanced" in (objective["class_weights"], objective["sampling"])
    weighed = ", all classes counting alike" if alike else ""
    return f" ({name}, nats a row{weighed}; always answering the base rate costs {always})"


def _threshold(facts: CardFacts) -> Iterator[str]:
    outputs = facts.outputs
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


def _inputs(facts: CardFacts) -> Iterator[str]:
    if not facts.inputs:
        return
    yield "## Inputs"
    yield markdown.table(["Column", "Type", "Read as"], facts.inputs)
    if facts.unused:
        yield "Columns that told nothing and are not read:"
        yield markdown.table(["Column", "Why"], list(facts.unused.items()))


def _gains(facts: CardFacts) -> Iterator[str]:
    if not facts.gains:
        return
    yield "## What the trees split on"
    ordered = sorted(facts.gains.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN]
    yield markdown.table(
        ["Column", "Share of the gain"], [(name, f"{gain:.1%}") for name, gain in ordered], numeric=[1]
    )
    yield "A column's gain says what the training used, not what causes the label."


def _limits(facts: CardFacts) -> str:
    if facts.outputs is None:
        return "It knows the tokens it was fitted on. How good it is, the evaluation says."
    objective = facts.config["training"]["objective"]
    bent = [name for name in ("class_weights", "sampling") if objective[name] != "none"]
    bent += ["focal"] if objective["focal"] else []
    shares = (
        f"The scores are not frequencies: {' and '.join(bent)} of the objective moved them. They rank rows; "
        "whoever needs probabilities calibrates them. "
        if bent and facts.outputs.kind != "regression"
        else ""
    )
    return shares + (
        "Values that were rare or absent in training are treated as unknown, numbers are cut off at 10 "
        "standard deviations or, where they are scaled by quantiles, at the smallest and the largest that "
        "were learned from, and nothing is known of times after the training split. How good the scores "
        "are, overall and by slice, the evaluation says."
    )


def _use(facts: CardFacts) -> str:
    load = "`trainwright.serving.load(folder).predict(columns)` checks the files, transforms raw columns"
    if facts.kind == "trees":
        return (
            f"{load} and scores them; it needs numpy, pyarrow and xgboost, not torch. `model.ubj` alone "
            "takes the matrix that `signature.json` describes (`xgboost.Booster(model_file=...)`)."
        )
    return (
        f"{load} and scores them. `program.pt2` alone takes the tensors that `signature.json` describes "
        "(`torch.export.load`)."
    )
