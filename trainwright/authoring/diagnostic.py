"""A finding of ``trainwright doctor``, about this machine or about an installation of Kubeflow."""

import dataclasses
from dataclasses import dataclass

from trainwright.errors import DependencyError


@dataclass(frozen=True)
class Diagnostic:
    """One result of ``trainwright doctor``.

    Attributes:
        name: Subject.
        state: ``ok``, ``note`` (optional and missing), ``miss``, or ``?`` (the caller has no right to look).
        text: What was found, and its consequence.
        advice: Next step; empty for none.
        use: The use of this machine that requires it; empty for none.
        code: Exit code that a ``miss`` of an installation leads to.
    """

    name: str
    state: str
    text: str
    advice: str = ""
    use: str = ""
    code: int = DependencyError.code

    def fields(self) -> dict[str, str]:
        """Return the finding as plain data."""
        found = dataclasses.asdict(self)
        del found["code"]
        return found

    def __str__(self) -> str:
        """Return one line, and the advice on a second."""
        line = f"  {self.state:<5} {self.name:<10} {self.text}"
        return f"{line}\n{'':<19}{self.advice}" if self.advice else line
