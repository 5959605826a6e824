"""Section ``network``: which model is fitted, and how large it is."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Discriminator, Field, JsonValue, Tag, model_validator

from trainwright.experiment.section import Name, Section, kind_of

Width = Annotated[int, Field(ge=1, le=65536)]
Dropout = Annotated[float, Field(ge=0, lt=1)]


class Tabular(Section):
    """What every model of rows has: how their columns are encoded."""

    scaling: Literal["standard", "quantile"] = Field(
        "standard",
        description="Of numbers: by mean and deviation, or by their place among the training rows.",
    )
    max_categories: int = Field(256, ge=2, description="Categories kept a column; the rest share one bucket.")
    min_category_rows: int = Field(10, ge=1, description="Categories in fewer rows share that bucket too.")


class Mlp(Tabular):
    """Embeddings for categories, then fully connected layers."""

    kind: Literal["mlp"] = Field("mlp", description="Architecture.")
    hidden: tuple[Width, ...] = Field((256, 128), description="Units a layer.")
    dropout: Dropout = Field(0.1, description="Share of units dropped in training.")
    embedding: int = Field(16, ge=1, le=1024, description="Largest width of a category's embedding.")


class FeatureTokenizer(Tabular):
    """A transformer over one token a column (Gorishniy et al., NeurIPS 2021)."""

    kind: Literal["ft_transformer"] = Field("ft_transformer", description="Architecture.")
    width: Width = Field(192, description="Width of a token.")
    layers: int = Field(3, ge=1, le=64, description="Transformer blocks.")
    heads: int = Field(8, ge=1, le=256, description="Attention heads; they share the width evenly.")
    hidden_ratio: float = Field(4 / 3, gt=0, le=16, description="Units of a block's network, per width.")
    dropout: Dropout = Field(0.1, description="Share dropped of attention and of units, in training.")

    @property
    def units(self) -> int:
        """Units of a block's network."""
        return max(1, round(self.width * self.hidden_ratio))

    @model_validator(mode="after")
    def _divided(self) -> Self:
        if self.width % self.heads:
            near = max(self.width // self.heads, 1) * self.heads
            raise ValueError(f"width {self.width} is no multiple of heads {self.heads}; {near} is")
        return self


class LanguageModel(Section):
    """A decoder-only transformer: rotary positions, RMSNorm, SwiGLU, causal attention."""

    kind: Literal["lm"] = Field("lm", description="Architecture.")
    tokens: Name = Field("tokens", description="Column that holds a list of token ids a row.")
    vocabulary: int = Field(ge=2, le=2**31 - 1, description="Number of token ids.")
    context: int = Field(1024, ge=2, le=2**20, description="Tokens a sequence.")
    separator: int | None = Field(None, ge=0, description="Token id put between the rows; absent: none.")
    width: Width = Field(512, description="Width of a token.")
    layers: int = Field(8, ge=1, le=512, description="Transformer blocks.")
    heads: int = Field(8, ge=1, le=256, description="Attention heads; they share the width evenly.")
    groups: int | None = Field(None, ge=1, description="Heads of keys and values; absent: as many as heads.")
    hidden: Width | None = Field(
        None, description="Units of a block's network; absent: 8/3 of the width, up to a multiple of 64."
    )
    rope_base: float = Field(10_000, gt=1, description="Base of the rotary positions' wave lengths.")
    tied: bool = Field(True, description="Whether input and output share one embedding.")

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
            raise ValueError(f"width {self.width} is no multiple of twice heads {self.heads}")
        if self.heads % self.shared_heads:
            raise ValueError(f"heads {self.heads} cannot share groups {self.groups} evenly")
        return self


class Trees(Section):
    """Gradient-boosted trees: XGBoost, by histograms."""

    kind: Literal["trees"] = Field("trees", description="Architecture.")
    rounds: int = Field(200, ge=1, le=100_000, description="Trees, at most.")
    depth: int = Field(6, ge=1, le=30, description="Deepest level of a tree.")
    learning_rate: float = Field(0.1, gt=0, le=1, description="Weight of each tree.")
    subsample: float = Field(1.0, gt=0, le=1, description="Share of rows that a tree is grown on.")
    columns: float = Field(1.0, gt=0, le=1, description="Share of columns that a tree is grown on.")
    min_child_weight: float = Field(1.0, ge=0, description="Smallest sum of Hessians in a leaf.")
    penalty: float = Field(1.0, ge=0, description="L2 penalty on the leaves' weights.")
    bins: int = Field(256, ge=2, le=65536, description="Bins of a histogram.")
    max_categories: int = Field(256, ge=2, description="Categories kept a column; the rest share one bucket.")
    min_category_rows: int = Field(10, ge=1, description="Categories in fewer rows share that bucket too.")

    @property
    def encoding(self) -> Tabular:
        """How columns are encoded for trees: as for a network; their scale does not matter."""
        return Tabular(max_categories=self.max_categories, min_category_rows=self.min_category_rows)


class Imported(Tabular):
    """The user's own module, by import path."""

    kind: Literal["module"] = Field("module", description="Architecture.")
    path: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="Importable object, as package.module:Name; see docs/models.md.",
    )
    options: dict[Name, JsonValue] = Field(
        default_factory=dict, description="Keyword arguments it is made with."
    )


_KINDS: dict[str, type[Section]] = {
    "mlp": Mlp,
    "ft_transformer": FeatureTokenizer,
    "lm": LanguageModel,
    "trees": Trees,
    "module": Imported,
}


def _tag(value: object) -> str | None:
    """Return the tag of a network: its kind; where none is given, it is an ``mlp``."""
    given = value.get("kind", "mlp") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return kind_of(_KINDS[given].__name__) if given in _KINDS else None


Network: TypeAlias = Annotated[
    Annotated[Mlp, Tag(kind_of("Mlp"))]
    | Annotated[FeatureTokenizer, Tag(kind_of("FeatureTokenizer"))]
    | Annotated[LanguageModel, Tag(kind_of("LanguageModel"))]
    | Annotated[Trees, Tag(kind_of("Trees"))]
    | Annotated[Imported, Tag(kind_of("Imported"))],
    Discriminator(
        _tag,
        custom_error_type="unknown_kind",
        custom_error_message=f"kind is one of {', '.join(_KINDS)}",
    ),
]


def read_network(data: object, where: str = "network") -> Network:
    """Validate the section, passed as plain data or as JSON text.

    Raises:
        InputError: It is not JSON, is of an unknown kind, or has any wrong key or value; all are named.
    """
    holder = (
        _Holder.parse(f'{{"network":{data}}}', where)
        if isinstance(data, str)
        else _Holder.check({"network": data}, where)
    )
    return holder.network


class _Holder(Section):
    network: Network
