"""`torch.distributed.device_mesh`: ranks in a grid, with a process group for each of its lines."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from kernbench.distributed.group_lifetime import init_process_group
from kernbench.distributed.group_making import new_rows
from kernbench.distributed.groups import (
    GroupMember,
    get_rank,
    get_world_size,
    is_initialized,
)
from kernbench.distributed.groups import group as default
from kernbench.errors import OptionError, call_site, site_fact
from kernbench.memory import dtypes
from kernbench.operations.from_values import tensor
from kernbench.process.process import current_process
from kernbench.ranks.groups import ProcessGroup
from kernbench.tensors.errors import DimensionError, TensorError, refuse
from kernbench.tensors.tensor import Tensor

__all__ = ["DeviceMesh", "init_device_mesh"]

Ranks = np.ndarray[Any, np.dtype[np.int64]]


class MeshKeyError(OptionError, KeyError):
    """A dimension that a mesh does not have."""

    __str__ = OptionError.__str__


def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: Mapping[Any, Any] | None = None,
) -> "DeviceMesh":
    """Returns the mesh of ranks 0, 1, ... in row-major order; every rank calls it. Does not wait.

    Args:
        device_type: `cuda` or `cpu`.
        mesh_shape: Extents, the slowest dimension first.
        mesh_dim_names: A name for each dimension, all different; None for no names.
        backend_override: Must be None.

    Raises:
        TensorError: If names and shape do not fit, or the world is smaller than the mesh.
        GroupMismatchError: If another rank makes a different mesh (C9).
    """
    refuse("init_device_mesh", backend_override=backend_override)
    shape = tuple(mesh_shape)
    if mesh_dim_names is not None and len(mesh_dim_names) != len(shape):
        raise TensorError(
            "mesh_shape and mesh_dim_names should have same length!",
            [site_fact(call_site()), f"got shape {shape}, names {tuple(mesh_dim_names)}"],
        )
    ranks = np.arange(prod(shape)).reshape(shape)
    return DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names)


def _group_of(lines: Ranks, name: str) -> ProcessGroup | None:
    """Makes a group of each line of ranks, and returns the group that holds the calling rank."""
    everybody = get_world_size()
    if lines.shape[1] == everybody and lines[0].tolist() == list(range(everybody)):
        return default.WORLD
    mine = None
    for group in new_rows(lines, f"mesh_{name}"):
        if group is not GroupMember.NON_GROUP_MEMBER:
            mine = group
    return mine


class DeviceMesh:
    """`torch.distributed.device_mesh.DeviceMesh`: ranks in a grid.

    Making a mesh makes a process group for each line along each dimension, described as `mesh_` and
    the dimension's name; a line of all ranks is the group `WORLD`. Every rank of the world makes
    the mesh, also a rank outside the mesh. If no group is initialised, `init_process_group()` is
    called first.

    Args:
        device_type: `cuda` or `cpu`.
        mesh: Global ranks, as nested lists or a tensor on the host.
        mesh_dim_names: A name for each dimension, all different; None for no names.
        backend_override: Must be None.

    Raises:
        TensorError: If the names do not fit, or a rank is twice in the mesh.
        GroupMismatchError: If another rank makes a different mesh (C9).
    """

    def __init__(
        self,
        device_type: str,
        mesh: Any,
        *,
        mesh_dim_names: Sequence[str] | None = None,
        backend_override: Sequence[Any] | None = None,
        _groups: Sequence[ProcessGroup | None] | None = None,
        _root: "DeviceMesh | None" = None,
    ) -> None:
        refuse("DeviceMesh", backend_override=backend_override)
        values = mesh.tolist() if isinstance(mesh, Tensor) else mesh
        self._ranks: Ranks = np.array(values, np.int64)
        names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        self._check(device_type, names)
        self.device_type = device_type
        self.mesh_dim_names = names
        if not is_initialized():
            init_process_group()
        if self._ranks.size > get_world_size():
            raise TensorError(
                f"Mesh should not be bigger than default world size {get_world_size()}, but found "
                f"{self._ranks.size} ranks!",
                [site_fact(call_site())],
            )
        self._root = _root or self
        self._flattened: dict[str, DeviceMesh] = {}
        dims = range(self.ndim)
        self._groups = [self._make(dim) for dim in dims] if _groups is None else list(_groups)

    def _check(self, device_type: str, names: tuple[str, ...] | None) -> None:
        if device_type not in {"cuda", "cpu"}:
            raise TensorError(
                f"DeviceMesh({device_type!r}): only meshes of 'cuda' and 'cpu' are simulated",
                [site_fact(call_site()), "a device's index is no part of the type"],
            )
        if names is not None and (len(set(names)) < len(names) or len(names) != self.ndim):
            raise TensorError(
                f"Each mesh_dim_name must be unique: got {names} for {self.ndim} dimensions",
                [site_fact(call_site())],
            )
        flat = np.sort(self._ranks, axis=None)
        if (flat[1:] == flat[:-1]).any():
            raise TensorError("a rank is in a mesh only once", [site_fact(call_site())])

    def _make(self, dim: int) -> ProcessGroup | None:
        """Makes the groups of a dimension and returns the group that holds the calling rank."""
        lines = np.moveaxis(self._ranks, dim, -1).reshape(-1, self._ranks.shape[dim])
        name = self.mesh_dim_names[dim] if self.mesh_dim_names else f"dim_{dim}"
        return _group_of(lines, name)

    def _flatten(
        self, mesh_dim_name: str | None = None, backend_override: object = None
    ) -> "DeviceMesh":
        """Returns a mesh of one dimension with the ranks of this mesh.

        If this mesh is a part of another mesh, every rank of that mesh calls the function and makes
        the groups of all such parts. That mesh then returns the result by name: `mesh["dp_cp"]`.

        Args:
            mesh_dim_name: Name of the dimension; None: the names of the dimensions joined by `_`.
            backend_override: Must be None.

        Raises:
            TensorError: If the dimensions have no names, or the name is taken.
            GroupMismatchError: If another rank makes a different mesh (C9).
        """
        refuse("DeviceMesh._flatten", backend_override=backend_override)
        if self.mesh_dim_names is None:
            raise TensorError(
                "Cannot flatten a DeviceMesh without mesh_dim_names!", [site_fact(call_site())]
            )
        name = mesh_dim_name or "_".join(self.mesh_dim_names)
        if self.ndim == 1 and name in self.mesh_dim_names:
            return self
        root = self._root
        dims = [root._dim(each) for each in self.mesh_dim_names]
        if name in root._flattened or name in (root.mesh_dim_names or ()):
            raise TensorError(
                f"{name} already exists in the mesh {root!r}",
                [site_fact(call_site())],
                hint="give it another mesh_dim_name",
            )
        rest = [dim for dim in range(root.ndim) if dim not in dims]
        lines = root._ranks.transpose(*rest, *dims).reshape(-1, self.size())
        mine = [line for line in lines if current_process().rank in line]
        flat = root._flattened[name] = DeviceMesh(
            self.device_type,
            (mine or list(lines))[0],
            mesh_dim_names=(name,),
            _groups=[_group_of(lines, name)],
            _root=root,
        )
        return flat

    @property
    def mesh(self) -> Tensor:
        """The global ranks, as an int32 tensor on the host."""
        return tensor(self._ranks.tolist(), dtype=dtypes.int32, device="cpu")

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._ranks.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return tuple(self._ranks.shape)

    def size(self, mesh_dim: int | None = None) -> int:
        """Returns the number of ranks in the mesh, or along a dimension."""
        return int(self._ranks.size) if mesh_dim is None else self.shape[mesh_dim]

    def get_rank(self) -> int:
        """Returns the calling rank's global rank."""
        return get_rank()

    def get_coordinate(self) -> list[int] | None:
        """Returns the calling rank's index along each dimension; None outside the mesh."""
        found = np.argwhere(self._ranks == current_process().rank)
        return found[0].tolist() if len(found) else None

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Returns the calling rank's place along a dimension.

        Args:
            mesh_dim: Index or name of the dimension; may be None in a mesh of one dimension.

        Raises:
            TensorError: If the mesh has several dimensions and none is given, or the calling rank
                is not in the mesh.
            MeshKeyError: If the mesh has no dimension of this name.
            DimensionError: If the mesh has no dimension of this index.
        """
        return get_rank(self.get_group(mesh_dim))

    def get_group(self, mesh_dim: int | str | None = None) -> ProcessGroup:
        """Returns the group of the line along a dimension that holds the calling rank.

        Args:
            mesh_dim: Index or name of the dimension; may be None in a mesh of one dimension.

        Raises:
            TensorError: If the mesh has several dimensions and none is given, or the calling rank
                is not in the mesh.
            MeshKeyError: If the mesh has no dimension of this name.
            DimensionError: If the mesh has no dimension of this index.
        """
        if mesh_dim is None and self.ndim > 1:
            raise TensorError(
                f"the mesh has {self.ndim} dimensions: mesh_dim is needed",
                [site_fact(call_site()), f"names {self.mesh_dim_names}"],
                hint="get_all_groups() returns the groups of all dimensions",
            )
        dim = self._dim(mesh_dim) if isinstance(mesh_dim, str) else mesh_dim or 0
        if not -self.ndim <= dim < self.ndim:
            raise DimensionError(
                f"a mesh of {self.ndim} dimensions has no dimension {dim}",
                [site_fact(call_site())],
            )
        group = self._groups[dim]
        if group is None:
            raise TensorError(
                f"rank {current_process().rank} is not in the mesh {self!r}",
                [site_fact(call_site()), f"its ranks are {self._ranks.tolist()}"],
            )
        return group

    def get_all_groups(self) -> list[ProcessGroup]:
        """Returns the groups that hold the calling rank, one for each dimension."""
        return [self.get_group(dim) for dim in range(self.ndim)]

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> "DeviceMesh":
        """Returns the part of the mesh along some dimensions that holds the calling rank.

        The part has its dimensions in the order of the names. No group is made.

        Raises:
            TensorError: If the dimensions have no names, or the rank is not in the mesh.
            MeshKeyError: If there is no dimension of a name, or a name is given twice.
        """
        if self.mesh_dim_names is None:
            raise TensorError(
                "Cannot slice a DeviceMesh without mesh_dim_names!", [site_fact(call_site())]
            )
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        if names == self.mesh_dim_names:
            return self
        if len(names) == 1 and names[0] in self._flattened:
            return self._flattened[names[0]]
        dims = [self._dim(name) for name in names]
        if len(set(dims)) < len(dims):
            raise MeshKeyError(
                f"Invalid mesh_dim_names {names} specified: a dimension is named twice.",
                [site_fact(call_site())],
            )
        place = self.get_coordinate()
        if place is None:
            raise TensorError(
                f"rank {current_process().rank} is not in the mesh {self!r}",
                [site_fact(call_site())],
            )
        index = tuple(slice(None) if dim in dims else place[dim] for dim in range(self.ndim))
        order = [sorted(dims).index(dim) for dim in dims]
        return DeviceMesh(
            self.device_type,
            self._ranks[index].transpose(order),
            mesh_dim_names=names,
            _groups=[self._groups[dim] for dim in dims],
            _root=self._root,
        )

    def _dim(self, name: str) -> int:
        if self.mesh_dim_names is None or name not in self.mesh_dim_names:
            raise MeshKeyError(
                f"Mesh dimension '{name}' does not exist.",
                [site_fact(call_site()), f"the dimensions are {self.mesh_dim_names}"],
            )
        return self.mesh_dim_names.index(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMesh) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Any, ...]:
        return (self.shape, tuple(self._ranks.flat), self.mesh_dim_names)

    def __repr__(self) -> str:
        names = self.mesh_dim_names
        if names is None:
            return f"DeviceMesh({self.shape}, '{self.device_type}')"
        pairs = zip(names, self.shape, strict=True)
        inside = ", ".join(f"{name}={extent}" for name, extent in pairs)
        return f"DeviceMesh(({inside}), '{self.device_type}')"
