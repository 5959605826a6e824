"""Where this process stands in the mesh of a training's processes."""

from dataclasses import dataclass

from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainwright.errors import InternalError
from trainwright.experiment.parallel import Parallel
from trainwright.train.degrees import Degrees, degrees
from trainwright.train.group import Group

_AXES = ("pipeline", "replicate", "shard", "tensor")


@dataclass(frozen=True)
class Layout:
    """The mesh, and this process's place in it.

    The axes are pipeline, replicate, shard, tensor, the last one running fastest over the ranks: what talks
    most lies closest together.

    Attributes:
        degrees: Lengths of the axes.
        group: The processes.
        mesh: All processes on the four axes; absent if there is only one.
    """

    degrees: Degrees
    group: Group
    mesh: DeviceMesh | None

    @property
    def parts(self) -> int:
        """Shares that a batch is cut into."""
        return self.degrees.parts

    @property
    def part(self) -> int:
        """Number of this process's share: the same on all that work on the same samples."""
        return self.group.rank // self.degrees.tensor % self.degrees.parts

    @property
    def stage(self) -> int:
        """Number of this process's stage."""
        return self.group.rank // (self.degrees.tensor * self.degrees.parts)

    @property
    def dice(self) -> int:
        """Number of this process's random stream: the same on those that divide the same matrices."""
        return self.group.rank // self.degrees.tensor

    @property
    def leads_stage(self) -> bool:
        """Whether this is the first process of its stage."""
        return self.group.rank % (self.degrees.tensor * self.degrees.parts) == 0

    @property
    def groups(self) -> list[ProcessGroup]:
        """The processes along each axis that this one exchanges anything with."""
        return self.mesh.get_all_groups() if self.mesh is not None else []

    def axis(self, *names: str) -> DeviceMesh:
        """Return the part of the mesh along some axes that this process lies on."""
        if self.mesh is None:
            raise InternalError("one process has no mesh")
        return self.mesh[names if len(names) > 1 else names[0]]


def lay_out(group: Group, parallel: Parallel) -> Layout:
    """Arrange the processes on the mesh; all of them call this together.

    Raises:
        InputError: The degrees do not fit their number.
    """
    found = degrees(parallel, group.size)
    if group.size == 1:
        return Layout(found, group, None)
    lengths = (found.pipeline, found.replicate, found.shard, found.tensor)
    return Layout(found, group, init_device_mesh(group.device.type, lengths, mesh_dim_names=_AXES))
