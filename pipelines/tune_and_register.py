"""The main job with a search of hyperparameters before the training."""

import inspect
from typing import Any

from kfp import dsl

from pipelines.train_and_register import add_steps, train_and_register

_JOB = train_and_register.pipeline_func
_ARGUMENTS = str(inspect.getdoc(_JOB)).partition("Args:\n")[2]
_TUNING = "    tuning: Section ``tuning``: search space, sampler, budget, confirmation of the winner.\n"
_SECTION = inspect.Parameter("tuning", inspect.Parameter.POSITIONAL_OR_KEYWORD, default={}, annotation=dict)


def _search(*values: Any) -> None:
    """Search hyperparameters on pinned data, and train and register as `train_and_register` does.

    ``tune`` stands between ``join`` and ``train``. If no trial is better than the default, the default is
    trained. The winner is judged by ``evaluate`` on rows that no trial saw.
    """
    add_steps("tune-and-register", dict(zip(_search.__signature__.parameters, values, strict=True)))  # type: ignore[attr-defined]


# kfp reads the parameters of a pipeline from the function's signature, and their meaning from its docstring.
_search.__signature__ = inspect.Signature([*inspect.signature(_JOB).parameters.values(), _SECTION])  # type: ignore[attr-defined]
_search.__doc__ = f"{inspect.getdoc(_search)}\n\nArgs:\n{_ARGUMENTS}\n{_TUNING}"
tune_and_register = dsl.pipeline(name="tune-and-register", display_name="Tune and register")(_search)
