"""Writes the folder of a model: weights, program, transforms, signature, example, card; no pickle.

Nothing in it depends on where or when the model was trained, so the same training gives the same digest. A
changed word of the card changes it, too.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from trainwright.artifacts import Model, ModelFile
from trainwright.documents import digest_file
from trainwright.report import markdown
from trainwright.serving import PROGRAM, WEIGHTS
from trainwright.serving.outputs import Outputs
from trainwright.serving.program import ROWS, Program, RowScorer, TokenScorer, write_rows, write_tokens
from trainwright.train.architectures import Architecture
from trainwright.train.feeding.loader import Batch
from trainwright.train.feeding.rows import RowSource
from trainwright.train.feeding.tokens import TokenSource
from trainwright.transforms import MISSING_CATEGORY, MISSING_TIME, Transforms

_EXAMPLE_ROWS, _EXAMPLE_TOKENS = 5, 16
_LARGEST = 1e150


@dataclass(frozen=True)
class ModelDescription:
    """Everything in the folder of a model beside its weights and program.

    Attributes:
        source: The split it was fitted on.
        transforms: The fitted transforms; None for a language model, as ``outputs``.
        config: Sections ``network`` and ``training``, and ``processes``.
        gains: Share of the total gain of each column, for trees.
        parents: Digests of further inputs, such as the user's own code, by name.
    """

    source: RowSource | TokenSource
    transforms: Transforms | None
    outputs: Outputs | None
    config: Mapping[str, Any]
    metrics: Mapping[str, float]
    gains: Mapping[str, float] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The architecture, such as ``mlp``."""
        return str(self.config["network"]["kind"])

    @property
    def inputs(self) -> list[tuple[str, str, str]]:
        """Name, Arrow type and kind of each raw input column."""
        types = {column.name: column.type for column in self.source.snapshot.columns}
        if isinstance(self.source, TokenSource):
            network = self.source.network
            ids = "list<item: int64>" if network.text else types[network.column]
            return [(network.column, ids, "tokens")]
        kinds = self.transforms.inputs if self.transforms else {}
        return [(name, types[name], kind) for name, kind in kinds.items()]

    def signature(self, program: Mapping[str, Any]) -> dict[str, Any]:
        """Return inputs and outputs of the model, as raw columns and as those of its ``program``."""
        inputs = [{"name": name, "type": kind, "kind": read_as} for name, kind, read_as in self.inputs]
        if self.outputs:
            more = {"target": self.outputs.target(), "outputs": self.outputs.describe()}
        else:
            meaning = "of the token that follows"
            more = {"outputs": [{"name": "log_probability", "type": "double", "meaning": meaning}]}
        return {"schema_version": 1, "inputs": inputs, **more, "program": dict(program)}

    def write(self, folder: Path, program: Mapping[str, Any]) -> Model:
        """Write the description, ``program`` included, beside weights and program; the manifest last."""
        snapshot, parents = self.source.snapshot, dict(self.parents)
        if self.transforms:
            self.transforms.write(folder / Transforms.FILE)
            parents = {"transforms": self.transforms.digest, **parents}
        _write_json(folder / "signature.json", self.signature(program))
        _write_json(folder / "input_example.json", self._example())
        _write_card(folder / "README.md", self)
        names = tuple(name for name, _, _ in self.inputs)
        model = Model(
            files=tuple(
                ModelFile(path=path.name, size=path.stat().st_size, sha256=digest_file(path))
                for path in sorted(folder.iterdir())
            ),
            kind=self.kind,
            inputs=names,
            label=self.outputs.label if self.outputs else names[0],
            training_data=snapshot.digest,
            config=dict(self.config),
            metrics=dict(self.metrics),
            parents={**snapshot.parents, "training_set": snapshot.digest, **parents},
        )
        model.write(folder)
        return model

    def _example(self) -> dict[str, Any]:
        """Return a few rows of the training split, in the split orientation of pandas and MLflow."""
        names = [name for name, _, _ in self.inputs]
        if isinstance(self.source, TokenSource):
            size = min(self.source.network.context, _EXAMPLE_TOKENS)
            return {"columns": names, "data": [[next(self.source.read(0))[:size].tolist()]]}
        batch, _ = next(self.source.read(0))
        columns = [_json_values(batch.column(name).slice(0, _EXAMPLE_ROWS)) for name in names]
        return {"columns": names, "data": [list(row) for row in zip(*columns, strict=True)]}


@dataclass(frozen=True)
class FittedNetwork:
    """A fitted network of rows; its ``architecture`` turns the output of its ``module`` into scores."""

    module: nn.Module
    architecture: Architecture
    transforms: Transforms
    source: RowSource
    config: Mapping[str, Any]
    metrics: Mapping[str, float]
    outputs: Outputs
    parents: Mapping[str, str] = field(default_factory=dict)

    def predict(self, rows: pa.RecordBatch) -> NDArray[np.float64]:
        """Score raw rows."""
        scorer = RowScorer(self.transforms, _to_cpu_float32(self.module), self.architecture.predict)
        return Program(self.transforms, {}, scorer).predict(rows)

    def with_comparison(self, metrics: Mapping[str, float]) -> Self:
        """Return this network with the figures of a comparison for the model's manifest."""
        return replace(self, metrics={**self.metrics, **metrics})

    def losses(self, batch: Batch) -> NDArray[np.float64]:
        """Return the loss of each row of a batch, shape (rows,), as the architecture defines it."""
        module = _to_cpu_float32(self.module)
        with torch.inference_mode():
            return self.architecture.loss(module(*batch.inputs), batch.target).double().numpy()

    def write(self, folder: Path, outputs: Outputs | None = None) -> Model:
        """Write the model's folder and return its manifest, which is written last."""
        folder.mkdir(parents=True)
        module, outputs = _to_cpu_float32(self.module), outputs or self.outputs
        _write_weights(folder / WEIGHTS, module)
        description = ModelDescription(
            self.source, self.transforms, outputs, self.config, self.metrics, parents=self.parents
        )
        program = _row_program(self.transforms, outputs)
        scorer = RowScorer(self.transforms, module, self.architecture.predict)
        write_rows(folder / PROGRAM, scorer, self.transforms, description.signature(program))
        return description.write(folder, program)


def _row_program(transforms: Transforms, outputs: Outputs) -> dict[str, Any]:
    """Describe the tensors that the program reads and returns: see docs/model-folder.md."""
    numbers, times, categories = (
        [column.name for column in columns]
        for columns in (transforms.scaled, transforms.times, transforms.categories)
    )
    shape = ["rows"] if len(outputs.columns) == 1 else ["rows", len(outputs.columns)]
    return {
        "file": PROGRAM,
        "rows_at_a_time": ROWS,
        "inputs": [
            {"name": "numbers", "type": "float64", "columns": numbers, "missing": "NaN"},
            {
                "name": "times",
                "type": "int64",
                "columns": times,
                "missing": MISSING_TIME,
                "unit": "microseconds since 1970-01-01 00:00 UTC",
            },
            {
                "name": "categories",
                "type": "int64",
                "columns": categories,
                "missing": MISSING_CATEGORY,
                "unit": "first 8 bytes of the SHA-256 of the UTF-8 text, little-endian, signed",
            },
        ],
        "outputs": [{"name": "score", "type": "float64", "shape": shape}],
    }


_BYTES_OF_TEXT = "bytes of the text in UTF-8; 256 separates rows"


@dataclass(frozen=True)
class FittedLanguageModel:
    """A fitted language model; see :class:`FittedNetwork`."""

    module: nn.Module
    architecture: Architecture
    source: TokenSource
    config: Mapping[str, Any]
    metrics: Mapping[str, float]

    def write(self, folder: Path) -> Model:
        """Write the model's folder, without transforms, and return its manifest, which is written last."""
        folder.mkdir(parents=True)
        module, network = _to_cpu_float32(self.module), self.source.network
        _write_weights(folder / WEIGHTS, module)
        shape = ["rows", "places", network.token_ids]
        program = {
            "file": PROGRAM,
            "context": network.context,
            "vocabulary": network.token_ids,
            **({"tokens": _BYTES_OF_TEXT} if network.text else {}),
            "inputs": [{"name": "tokens", "type": "int64", "shape": ["rows", "places"]}],
            "outputs": [{"name": "log_probability", "type": "float64", "shape": shape}],
        }
        description = ModelDescription(self.source, None, None, self.config, self.metrics)
        scorer = TokenScorer(module, self.architecture.predict)
        write_tokens(folder / PROGRAM, scorer, network.context, description.signature(program))
        return description.write(folder, program)


def _to_cpu_float32(module: nn.Module) -> nn.Module:
    """Move a module to the CPU in evaluation mode, half-precision weights as float32; in place."""
    module = module.cpu().eval()
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dtype in (torch.bfloat16, torch.float16):
            tensor.data = tensor.data.float()
    return module


def _write_weights(path: Path, module: nn.Module) -> None:
    """Write the state of a module as safetensors; of names that share memory, only the first.

    ``safetensors.torch.load_model`` reads it back.
    """
    weights: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, value in sorted(module.state_dict().items()):
        memory = (value.data_ptr(), value.shape)
        if not value.numel() or memory not in seen:
            weights[name] = value.detach().contiguous()
        seen.add(memory)
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)  # save_file lets the owner alone read it; another user serves it


def _json_values(column: pa.Array) -> list[Any]:
    """Return a column as JSON data; times as text in UTC without a zone, as MLflow's examples have them."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us"), safe=False)
    if pa.types.is_floating(column.type):
        values = column.to_pylist()
        return [value if value is not None and abs(value) <= _LARGEST else None for value in values]
    native = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
    return column.to_pylist() if native else column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]


def _write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


# The model card, as Markdown.

_KINDS = {
    "mlp": "A multilayer perceptron",
    "ft_transformer": "A transformer with one token a column (Gorishniy et al., NeurIPS 2021)",
    "trees": "Gradient-boosted trees (XGBoost)",
    "lm": "A decoder-only transformer",
}
_SHOWN = 20


def _write_card(path: Path, facts: ModelDescription) -> None:
    """Write the card of a model as Markdown."""
    parts = (_opening, _data, _fitting, _threshold, _inputs, _limits, _use)
    texts = [text.rstrip() for part in parts for text in part(facts)]
    path.write_text("\n\n".join(texts) + "\n")


def _opening(facts: ModelDescription) -> Iterator[str]:
    outputs = facts.outputs
    what = _KINDS.get(facts.kind)
    if what is None:
        what = f"The module `{facts.config['network'].get('path', facts.kind)}`"
    if outputs is None:
        yield "# The next token"
        tokens = "tokens"
        if isinstance(facts.source, TokenSource) and facts.source.network.text:
            tokens = f"tokens, the {_BYTES_OF_TEXT}"
        yield f"{what} over {tokens}. It gives the log-probability of every next token."
    else:
        prediction = "Prediction" if outputs.kind == "regression" else "Probability"
        yield f"# {prediction} of {markdown.escape(outputs.label)}"
        yield f"{what} over {len(facts.inputs)} columns. {_scores(outputs)}"
    yield "## What it is for"
    rows = "Text like that" if outputs is None else "Rows like those"
    yield (
        f"{rows} of data version `{facts.source.snapshot.digest[:12]}`, for the decisions that its "
        "evaluation had in view. It says what goes together with what, not what would follow from a change, "
        "and nothing of rows from elsewhere or from a time when things have changed."
    )


def _scores(outputs: Outputs) -> str:
    """Describe the scores in one sentence."""
    label = f"`{outputs.label}`"
    if outputs.kind == "regression":
        return f"Its score is the estimated mean of {label}."
    names = [markdown.escape(name) for name in outputs.class_names]
    if outputs.kind == "binary":
        return f"Its score is the estimated probability that {label} is {names[1]}."
    listed = names if len(names) <= _SHOWN else [*names[:_SHOWN], "..."]
    if not outputs.names:
        listed = ["0", "1", f"... {names[-1]}"]
    return f"Its scores are the estimated probabilities that {label} is {', '.join(listed)}."


def _data(facts: ModelDescription) -> Iterator[str]:
    metrics = facts.metrics
    yield "## Data"
    second = facts.outputs.class_names[1] if facts.outputs and facts.outputs.kind == "binary" else ""
    share = f", of which {metrics['base_rate']:.1%} have label {markdown.escape(second)}" if second else ""
    left_out = f"; {metrics['rows_without_label']:,.0f} rows without a label were left out"
    if held_out := metrics.get("rows_held_out"):
        left_out += f", {held_out:,.0f} rows were held out for early stopping"
    yield (
        f"Fitted on {metrics['rows']:,.0f} rows of split `{facts.source.split}`{share}{left_out}. Data "
        f"version `{facts.source.snapshot.digest}`."
    )


def _fitting(facts: ModelDescription) -> Iterator[str]:
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


def _measure(facts: ModelDescription) -> str:
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


def _threshold(facts: ModelDescription) -> Iterator[str]:
    outputs = facts.outputs
    if outputs is None or outputs.kind != "binary":
        return
    yield "## Threshold"
    if outputs.threshold is None:
        yield "None was chosen: 0.5 is as good as any until somebody says what a miss and a false alarm cost."
        return
    chosen, rule = outputs.threshold, {"f1": "F1", "youden": "true less false positive rate"}
    second = markdown.escape(outputs.class_names[1])
    yield (
        f"A score of at least {chosen.value:.6g} counts as {second}: of all thresholds it has the best "
        f"{rule[chosen.rule]} on split `{chosen.split}`, {chosen.gain:.4f}. It is the best of many on that "
        "split, so on others it reaches less."
    )


def _inputs(facts: ModelDescription) -> Iterator[str]:
    if facts.transforms:
        yield "## Inputs"
        yield markdown.table(["Column", "Type", "Read as"], facts.inputs)
        if unused := facts.transforms.unused:
            yield "Columns that told nothing and are not read:"
            yield markdown.table(["Column", "Why"], list(unused.items()))
    if facts.gains:
        yield "## What the trees split on"
        ordered = sorted(facts.gains.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN]
        rows = [(name, f"{gain:.1%}") for name, gain in ordered]
        yield markdown.table(["Column", "Share of the gain"], rows, numeric=[1])
        yield "A column's gain says what the training used, not what causes the label."


def _limits(facts: ModelDescription) -> Iterator[str]:
    yield "## Limits"
    if facts.outputs is None:
        yield "It knows the tokens it was fitted on. How good it is, the evaluation says."
        return
    objective = facts.config["training"]["objective"]
    bent = [name for name in ("class_weights", "sampling") if objective[name] != "none"]
    bent += ["focal"] if objective["focal"] else []
    shares = (
        f"The scores are not frequencies: {' and '.join(bent)} of the objective moved them. They rank rows; "
        "whoever needs probabilities calibrates them. "
        if bent and facts.outputs.kind != "regression"
        else ""
    )
    yield shares + (
        "Values that were rare or absent in training are treated as unknown, numbers are cut off at 10 "
        "standard deviations or, where they are scaled by quantiles, at the smallest and the largest that "
        "were learned from, and nothing is known of times after the training split. How good the scores "
        "are, overall and by slice, the evaluation says."
    )


def _use(facts: ModelDescription) -> Iterator[str]:
    yield "## Use"
    load = "`trainwright.serving.load(folder).predict(columns)` checks the files, transforms raw columns"
    if facts.kind == "trees":
        yield (
            f"{load} and scores them; it needs numpy, pyarrow and xgboost, not torch. `model.ubj` alone "
            "takes the matrix that `signature.json` describes (`xgboost.Booster(model_file=...)`)."
        )
    else:
        yield (
            f"{load} and scores them. `program.pt2` alone takes the tensors that `signature.json` describes "
            "(`torch.export.load`)."
        )
