"""Which objects are listed or watched together."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Objects that are looked at together.

    Attributes:
        kind: What they are: ``job``, ``pods``, ``events`` or ``workloads``.
        fields: Field selector.
        labels: Label selector.
    """

    kind: str
    fields: str = ""
    labels: str = ""

    @property
    def query(self) -> dict[str, str]:
        """The parameters of a call that select them."""
        pairs = {"fieldSelector": self.fields, "labelSelector": self.labels}
        return {name: value for name, value in pairs.items() if value}
