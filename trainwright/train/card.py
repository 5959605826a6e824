"""The model card: what a person should know before using a model. The same training gives the same text."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.report import markdown

if TYPE_CHECKING:
    from trainwright.train.model import Trained


def write_card(path: Path, trained: "Trained") -> None:
    """Write the card of a model as Markdown."""
    path.write_text("\n\n".join(_parts(trained)) + "\n")


def _parts(trained: "Trained") -> Iterator[str]:
    label = markdown.escape(trained.source.label)
    yield f"# Probability of {label}"
    yield (
        f"A multilayer perceptron over {len(trained.transforms.inputs)} columns. Its score is the estimated "
        f"probability that `{label}` is 1."
    )
    yield from _fitting(trained)
    yield from _inputs(trained)
    yield "## Limits"
    yield (
        "Values that were rare or absent in training are treated as unknown, numbers are cut off at 10 "
        "standard deviations or, where they are scaled by quantiles, at the smallest and the largest that "
        "were learned from, and nothing is known of times after the training split. How good the scores "
        "are, overall and by slice, is in the report of the evaluation, not here."
    )
    yield "## Use"
    yield (
        "`trainwright.train.serving.load(folder).predict(columns)` checks the files, transforms raw columns "
        "and scores them. `program.pt2` alone takes the transformed tensors that `signature.json` describes "
        "(`torch.export.load`)."
    )


def _fitting(trained: "Trained") -> Iterator[str]:
    metrics = trained.metrics
    yield "## Data"
    yield (
        f"Fitted on {metrics['rows']:,.0f} rows of split `{trained.source.split}`, of which "
        f"{metrics['base_rate']:.1%} have label 1; {metrics['rows_without_label']:,.0f} rows without a label "
        f"were left out. Data version `{trained.data_version}`."
    )
    yield "## Training"
    yield (
        f"{metrics['steps']:,.0f} steps; mean loss of the last epoch {metrics['train_loss']:.4f} (binary "
        "cross-entropy, nats a row; always answering the base rate costs "
        f"{metrics['base_rate_loss']:.4f})."
    )
    settings = {**trained.config["network"], **trained.config["training"]}
    rows = [*settings.items(), ("processes", trained.config["processes"])]
    yield markdown.table(["Setting", "Value"], rows).rstrip()


def _inputs(trained: "Trained") -> Iterator[str]:
    yield "## Inputs"
    types = {column.name: column.type for column in trained.source.snapshot.columns}
    inputs = [(name, types[name], kind) for name, kind in trained.transforms.inputs.items()]
    yield markdown.table(["Column", "Type", "Read as"], inputs).rstrip()
    if trained.transforms.unused:
        yield "Columns that told nothing and are not read:"
        yield markdown.table(["Column", "Why"], list(trained.transforms.unused.items())).rstrip()
