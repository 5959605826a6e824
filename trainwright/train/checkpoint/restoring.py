"""Going on from the newest checkpoint that verifies: all processes together, each reading what it needs."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from trainwright.errors import DependencyError, InputError
from trainwright.train.checkpoint.agreement import Circle
from trainwright.train.checkpoint.manifest import Manifest, Name
from trainwright.train.checkpoint.reading import damage, load, reader
from trainwright.train.checkpoint.shelf import Shelf
from trainwright.train.checkpoint.tensors import (
    Shapes,
    require_same,
    shapes_in,
    shapes_of,
    tensors_of,
    with_optimizer,
)
from trainwright.train.state import State

_T = TypeVar("_T")
_log = logging.getLogger("trainwright.train")


class Restorer:
    """Finds the newest checkpoint that verifies, and reads it.

    Args:
        circle: The processes.
        shelf: Where the checkpoints lie; the first process alone has it.
        folder: The folder that all processes read them from.
        told: What the training was told; a checkpoint that was told another thing is refused.
    """

    def __init__(self, circle: Circle, shelf: Shelf | None, folder: Path, told: Mapping[str, Any]) -> None:
        self._circle, self._shelf, self._folder, self._told = circle, shelf, folder, told

    def restore(self, state: State, step: int | None = None) -> Manifest | None:
        """Read the newest state that verifies, of all or of those after a step.

        Raises:
            DependencyError: None does, and one could not be had now that may another time.
        """
        unreached = ""
        candidates = [entry for entry in self._ask(Shelf.candidates) if step is None or entry[0].step == step]
        for name, from_store in candidates:
            manifest, wrong, passing = self._verified(name, from_store=from_store)
            unreached = unreached or (wrong if passing else "")
            if manifest and not wrong:
                manifest.require_told(self._told)
                self._read(state, manifest)
                return manifest
            if self._shelf:
                place = "the store's copy of " if from_store else ""
                _log.warning("%scheckpoint %s is passed over: %s", place, name, wrong)
        if unreached and step is None:
            raise DependencyError(
                f"no checkpoint could be had: {unreached}",
                where="training.checkpoints.store",
                hint="Run the step again when that has passed: it goes on from there.",
            )
        if candidates and self._shelf and step is None:
            _log.warning("no checkpoint of %d verifies: training begins anew", len(candidates))
        return None

    def _ask(self, call: Callable[[Shelf], _T]) -> _T:
        return self._circle.first(lambda: call(cast(Shelf, self._shelf)))

    def _verified(self, name: Name, *, from_store: bool) -> tuple[Manifest | None, str, bool]:
        """Check the digests of a checkpoint, each process those of its share of the files.

        Returns:
            Its manifest, if it can be read; what is wrong; and whether that may pass.
        """

        def bring(shelf: Shelf) -> tuple[Manifest | None, str, bool]:
            try:
                return shelf.bring(name, from_store=from_store), "", False
            except (InputError, DependencyError) as error:
                return None, error.what, isinstance(error, DependencyError)

        manifest, wrong, passing = self._ask(bring)
        if manifest is None:
            return None, wrong, passing
        share = manifest.files[self._circle.rank :: self._circle.size]
        try:
            found = self._circle.all(lambda: damage(self._folder / str(name), share))
        except DependencyError as error:
            return None, error.what, True
        if self._shelf and not any(found):
            self._shelf.trust(name)
        return manifest, next((wrong for wrong in found if wrong), ""), False

    def _read(self, state: State, manifest: Manifest) -> None:
        folder = self._folder / str(manifest.name)
        metadata = self._circle.all(lambda: reader(folder, manifest).read_metadata())[self._circle.rank]
        wanted: Shapes = {}
        for shapes in self._circle.all(lambda: shapes_of(tensors_of(state))):
            wanted |= shapes
        require_same(wanted, shapes_in(metadata), str(folder))
        load(with_optimizer(state, metadata), folder, manifest, self._circle.group)
        state.step = manifest.step
        state.facts.clear()
        state.facts.update(manifest.facts)
