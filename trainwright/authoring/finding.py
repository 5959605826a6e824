"""A finding of ``trainwright doctor``, about this machine or about an installation of Kubeflow."""

import dataclasses
from dataclasses import dataclass

from trainwright.errors import DependencyError


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What it is about.
        state: ``ok``, ``note`` (it works without), ``miss``, or ``?`` (the caller may not look).
        text: What was found, and what that costs.
        advice: What to do; empty for nothing.
        use: The use of this machine that cannot do without it; empty for none.
        code: Exit code that a ``miss`` of an installation stands for.
    """

    name: str
    state: str
    text: str
    advice: str = ""
    use: str = ""
    code: int = DependencyError.code

    def fields(self) -> dict[str, str]:
        """Return it as plain data."""
        found = dataclasses.asdict(self)
        del found["code"]
        return found

    def __str__(self) -> str:
        """Write it as one line, and what to do on a second."""
        line = f"  {self.state:<5} {self.name:<10} {self.text}"
        return f"{line}\n{'':<19}{self.advice}" if self.advice else line
