"""Section ``network``: architecture and size of the model."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Discriminator, Field, JsonValue, Tag, model_validator

from trainwright.experiment.section import Name, Section, kind_of

Width = Annotated[int, Field(ge=1, le=65536)]
Dropout = Annotated[float, Field(ge=0, lt=1)]


class Tabular(Section):
    """Encoding of the columns of a tabular model."""

    scaling: Literal["standard", "quantile"] = Field("standard", description="By deviation or quantile.")
    max_categories: int = Field(256, ge=2, description="Categories per column; the rest share a bucket.")
    min_category_rows: int = Field(10, ge=1, description="Rarer categories share that bucket.")


class Mlp(Tabular):
    """Multilayer perceptron with embeddings of categories."""

    kind: Literal["mlp"] = Field("mlp", description="Architecture.")
    hidden: tuple[Width, ...] = Field((256, 128), description="Units per layer.")
    dropout: Dropout = Field(0.1, description="Dropout rate.")
    embedding: int = Field(16, ge=1, le=1024, description="Largest embedding width.")


class FeatureTokenizer(Tabular):
    """FT-Transformer: one token per column (Gorishniy et al., NeurIPS 2021)."""

    kind: Literal["ft_transformer"] = Field("ft_transformer", description="Architecture.")
    width: Width = Field(192, description="Token width, a multiple of `heads`.")
    layers: int = Field(3, ge=1, le=64, description="Transformer blocks.")
    heads: int = Field(8, ge=1, le=256, description="Attention heads.")
    hidden_ratio: float = Field(4 / 3, gt=0, le=16, description="Feed-forward units per unit of width.")
    dropout: Dropout = Field(0.1, description="Dropout rate.")

    @property
    def units(self) -> int:
        """Units of a block's feed-forward network."""
        return max(1, round(self.width * self.hidden_ratio))

    @model_validator(mode="after")
    def _divided(self) -> Self:
        if self.width % self.heads:
            near = max(self.width // self.heads, 1) * self.heads
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}; {near} is")
        return self


_TOKENS = "tokens"
_BYTES = 256
"""Tokens of text: the values of a byte; the next token id separates rows."""


class LanguageModel(Section):
    """Decoder-only transformer: rotary positions, RMSNorm, SwiGLU, causal attention."""

    kind: Literal["lm"] = Field("lm", description="Architecture.")
    text: Name | None = Field(None, description="Column of text; its UTF-8 bytes are the tokens.")
    tokens: Name = Field(_TOKENS, description="Or a column with lists of token ids.")
    vocabulary: int | None = Field(
        None, ge=2, le=2**31 - 1, description="Number of token ids; required with `tokens`."
    )
    context: int = Field(1024, ge=2, le=2**20, description="Tokens per sequence.")
    separator: int | None = Field(None, ge=0, description="Token id between rows; of text, 256.")
    width: Width = Field(512, description="Token width, a multiple of twice `heads`.")
    layers: int = Field(8, ge=1, le=512, description="Transformer blocks.")
    heads: int = Field(8, ge=1, le=256, description="Attention heads.")
    groups: int | None = Field(None, ge=1, description="Key-value heads. Default: `heads`.")
    hidden: Width | None = Field(None, description="Feed-forward units. Default: 8/3 of the width, by 64.")
    rope_base: float = Field(10_000, gt=1, description="Base of the rotary wavelengths.")
    tied: bool = Field(True, description="Share input and output embedding.")

    @property
    def column(self) -> str:
        """The column of text or of token ids."""
        return self.text or self.tokens

    @property
    def token_ids(self) -> int:
        """Number of token ids: the bytes and the separator of text, or the vocabulary."""
        return self.vocabulary or _BYTES + 1

    @property
    def row_separator(self) -> int | None:
        """Token id between rows; None if rows follow each other without one."""
        return _BYTES if self.text else self.separator

    @property
    def shared_heads(self) -> int:
        """Heads of keys and values."""
        return self.groups or self.heads

    @property
    def units(self) -> int:
        """Units of a block's feed-forward network."""
        return self.hidden or -(-self.width * 8 // (3 * 64)) * 64

    @model_validator(mode="after")
    def _divided(self) -> Self:
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} is not a multiple of twice heads {self.heads}")
        if self.heads % self.shared_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of groups {self.groups}")
        return self

    @model_validator(mode="after")
    def _tokens_are_described(self) -> Self:
        if not self.text and self.vocabulary is None:
            raise ValueError(
                "neither text nor vocabulary is set; name the column of text, or the number of token ids"
            )
        set_for_ids = {
            "tokens": self.tokens != _TOKENS,
            "vocabulary": self.vocabulary is not None,
            "separator": self.separator is not None,
        }
        if self.text and any(set_for_ids.values()):
            names = ", ".join(name for name, is_set in set_for_ids.items() if is_set)
            raise ValueError(f"{names}: for token ids, and the tokens of text {self.text!r} are bytes")
        return self


class Trees(Section):
    """Gradient-boosted trees: XGBoost with histograms."""

    kind: Literal["trees"] = Field("trees", description="Architecture.")
    rounds: int = Field(500, ge=1, le=100_000, description="Most trees.")
    depth: int = Field(6, ge=1, le=30, description="Largest depth of a tree.")
    learning_rate: float = Field(0.05, gt=0, le=1, description="Learning rate.")
    subsample: float = Field(0.8, gt=0, le=1, description="Fraction of rows per tree.")
    columns: float = Field(0.8, gt=0, le=1, description="Fraction of columns per tree.")
    min_child_weight: float = Field(1.0, ge=0, description="Smallest Hessian sum in a leaf.")
    penalty: float = Field(1.0, ge=0, description="L2 penalty on leaf weights.")
    bins: int = Field(256, ge=2, le=65536, description="Bins of a histogram.")
    max_categories: int = Field(256, ge=2, description="Categories per column; the rest share a bucket.")
    min_category_rows: int = Field(10, ge=1, description="Rarer categories share that bucket.")

    @property
    def encoding(self) -> Tabular:
        """Encoding of the columns: that of a network, since trees do not depend on the scale."""
        return Tabular(max_categories=self.max_categories, min_category_rows=self.min_category_rows)


class Auto(Section):
    """Boosted trees and the multilayer perceptron; the better one on held-out rows is kept."""

    kind: Literal["auto"] = Field("auto", description="Architecture.")
    max_categories: int = Field(256, ge=2, description="Categories per column; the rest share a bucket.")
    min_category_rows: int = Field(10, ge=1, description="Rarer categories share that bucket.")

    @property
    def encoding(self) -> Tabular:
        """Encoding of the columns, which the candidates share."""
        return Tabular(max_categories=self.max_categories, min_category_rows=self.min_category_rows)

    @property
    def candidates(self) -> tuple[Trees, Mlp]:
        """The networks to choose from, with their defaults."""
        shared = {"max_categories": self.max_categories, "min_category_rows": self.min_category_rows}
        return Trees.model_validate(shared), Mlp.model_validate(shared)


class Imported(Tabular):
    """Your own module, by import path; see [models](models.md)."""

    kind: Literal["module"] = Field("module", description="Architecture.")
    path: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", description="As `package.module:Name`.")
    options: dict[Name, JsonValue] = Field({}, description="Its keyword arguments.")


_KINDS: dict[str, type[Section]] = {
    "mlp": Mlp,
    "ft_transformer": FeatureTokenizer,
    "lm": LanguageModel,
    "trees": Trees,
    "auto": Auto,
    "module": Imported,
}


def _tag(value: object) -> str | None:
    """Return the tag of a network by its kind, ``mlp`` if it has none."""
    kind = value.get("kind", "mlp") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return kind_of(_KINDS[kind].__name__) if kind in _KINDS else None


Network: TypeAlias = Annotated[
    Annotated[Mlp, Tag(kind_of("Mlp"))]
    | Annotated[FeatureTokenizer, Tag(kind_of("FeatureTokenizer"))]
    | Annotated[LanguageModel, Tag(kind_of("LanguageModel"))]
    | Annotated[Trees, Tag(kind_of("Trees"))]
    | Annotated[Auto, Tag(kind_of("Auto"))]
    | Annotated[Imported, Tag(kind_of("Imported"))],
    Discriminator(
        _tag,
        custom_error_type="unknown_kind",
        custom_error_message=f"kind must be one of {', '.join(_KINDS)}",
    ),
]


class _Holder(Section):
    network: Network


def read_network(data: object, where: str = "network") -> Network:
    """Validate the section, passed as plain data or as JSON text.

    Raises:
        InputError: It is not JSON, or its kind, a key or a value is invalid; all of them are reported.
    """
    holder = (
        _Holder.parse(f'{{"network":{data}}}', where)
        if isinstance(data, str)
        else _Holder.check({"network": data}, where)
    )
    return holder.network
