"""The job directory: shared by all attempts of a training, named after a digest of its configuration."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainwright.documents import canonical, digest_text
from trainwright.errors import DependencyError, InputError, in_our_words
from trainwright.experiment import Resources
from trainwright.launch.job_directory import (
    create_attempt,
    locked_attempt,
    newest_attempt,
    remove_checkpoints,
    remove_job_directory,
    sibling_directories,
)
from trainwright.train.config import TrainConfig, differences

_SHOWN = 5


@contextmanager
def next_attempt_folder(
    run: str, decisive: Mapping[str, Any], launcher: str, resources: Resources, model: Path
) -> Iterator[Path]:
    """Create a folder for the next attempt; remove the job directory once the attempt has succeeded.

    On a cluster, the attempt's outputs stay: the platform stores them only after the step has ended, and a
    step that is lost meanwhile runs again. The janitor removes such directories later.

    ``run``, which is the same at every retry, and the ``decisive`` settings identify the training.

    Raises:
        DependencyError: The volume is not mounted, or another process runs the same training.
        PermissionRefused: This step may not write there.
        InputError: The path cannot be a folder.
    """
    name = digest_text(canonical([run, dict(decisive)]))[:16]
    if launcher == "local":
        directory = model.absolute().with_name(f".{model.name}.job-{name}")
        if not directory.exists():
            _report_unfinished(directory, decisive)
        _create(directory)
        with locked_attempt(directory) as folder:
            yield folder
        return
    _require_mounted(resources)
    directory = Path(resources.mount) / "trainwright" / "jobs" / name
    _create(directory)
    yield create_attempt(directory)
    remove_checkpoints(directory)


@contextmanager
def next_trial_folder(directory: Path, launcher: str, resources: Resources) -> Iterator[Path]:
    """Create a folder for the next attempt at a trial; remove the job directory once it has succeeded.

    Raises:
        DependencyError: The volume is not mounted, or another process runs the same trial.
    """
    if launcher == "local":
        with locked_attempt(directory) as folder:
            yield folder
        return
    _require_mounted(resources)
    yield create_attempt(directory)
    remove_job_directory(directory)


def _require_mounted(resources: Resources) -> None:
    if not Path(resources.mount).is_dir():
        raise DependencyError(
            f"claim {resources.claim!r} is not mounted in this step",
            where=f"resources.mount {resources.mount}",
            hint="Mount it in the pipeline: kubernetes.mount_pvc(task, pvc_name=..., mount_path=...).",
        )


def _report_unfinished(directory: Path, decisive: Mapping[str, Any]) -> None:
    """Report why an unfinished training of the same output is not resumed."""
    for other in sibling_directories(directory):
        folder = newest_attempt(other)
        if folder and (folder / TrainConfig.FILE).exists():
            changes = differences(TrainConfig.read(folder).decisive, decisive) or ["run is another"]
            sys.stderr.write(
                f"An unfinished training of this output is not resumed: {'; '.join(changes[:_SHOWN])}. "
                "This one starts from step 0.\n"
            )


def _create(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if (known := in_our_words(error)) is not error:
            raise known from None
        what = f"the job directory cannot be created: {error.strerror}"
        raise InputError(what, where=str(directory), hint="Name an output that can be a folder.") from None
