"""`torch.save` and `torch.load`, in PyTorch's own format.

A file is a zip archive: `data.pkl` holds the object, with a reference for each tensor; `data/N` the
bytes of tensor N, row by row. PyTorch loads what is saved here, and the other way round, apart from
objects of a library's own classes. A view is saved as what it shows; tensors that show the same
elements of the same memory share their memory again when they are loaded.
"""

import codecs
import io
import pickle
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike, fspath
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from kernbench.errors import (
    KernbenchError,
    UnsupportedError,
    call_site,
    call_site_of,
    site_fact,
)
from kernbench.memory import DType, contiguous_strides, dtypes
from kernbench.nn.module import Parameter
from kernbench.operations.creation import empty
from kernbench.operations.from_values import from_numpy
from kernbench.process import access
from kernbench.process.types import Device, DeviceLike, Size
from kernbench.tensors.errors import refuse
from kernbench.tensors.new import alias
from kernbench.tensors.operands import type_name
from kernbench.tensors.running import host_array
from kernbench.tensors.tensor import Tensor

if TYPE_CHECKING:
    from zipfile import ZipFile

access.loads(__name__)

__all__ = ["load", "save"]

File = str | PathLike[str] | IO[bytes]
Where = DeviceLike | Mapping[str, str] | Callable[[Tensor, str], Any] | None


class SaveError(KernbenchError, pickle.UnpicklingError):
    """A file that cannot be loaded, or an object that cannot be saved."""


_STORAGES: Final = {
    dtypes.float64: "DoubleStorage",
    dtypes.float32: "FloatStorage",
    dtypes.float16: "HalfStorage",
    dtypes.bfloat16: "BFloat16Storage",
    dtypes.int64: "LongStorage",
    dtypes.int32: "IntStorage",
    dtypes.int16: "ShortStorage",
    dtypes.int8: "CharStorage",
    dtypes.uint8: "ByteStorage",
    dtypes.bool_: "BoolStorage",
    dtypes.complex64: "ComplexFloatStorage",
    dtypes.complex128: "ComplexDoubleStorage",
}
"""PyTorch's classes for the memory of tensors, by element type."""

_TYPES: Final = {name: dtype for dtype, name in _STORAGES.items()}
_PLAIN: Final = {
    ("collections", "Counter"): Counter,
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): codecs.encode,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "complex"): complex,
    ("builtins", "bytearray"): bytearray,
    ("__builtin__", "set"): set,
    ("__builtin__", "complex"): complex,
}
"""Classes besides those of tensors that `weights_only` lets a file name."""


class _Name:
    """Something that a pickle names by module and name, and that need not exist here."""

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __call__(self, *args: Any) -> Any:
        raise NotImplementedError(self.name)


class _Stored:
    """The memory of a tensor in a file."""

    def __init__(self, key: str, dtype: DType, location: str, count: int) -> None:
        self.key, self.dtype, self.location, self.count = key, dtype, location, count


# The pickler of the standard library in Python, since that in C looks up every name it writes.
class _Pickler(pickle._Pickler):
    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)

    def __init__(self, file: IO[bytes], archive: "ZipFile") -> None:
        super().__init__(file, 2)
        self._archive = archive
        self._known: dict[object, _Stored] = {}
        self._alive: list[Tensor] = []

    def _save_name(self, obj: _Name) -> None:
        self.write(b"c" + f"{obj.module}\n{obj.name}\n".encode())  # type: ignore[attr-defined]
        self.memoize(obj)  # type: ignore[attr-defined]

    def _save_dtype(self, obj: DType) -> None:
        self._save_name(_Name("torch", obj.name))

    dispatch[_Name] = _save_name
    dispatch[DType] = _save_dtype

    def persistent_id(self, obj: object) -> Any:
        if not isinstance(obj, _Stored):
            return None
        kind = _Name("torch", _STORAGES[obj.dtype])
        return ("storage", kind, obj.key, obj.location, obj.count)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Parameter):
            data = obj.detach()
            return _Name("torch._utils", "_rebuild_parameter"), (
                data, obj.requires_grad, OrderedDict(),
            )  # fmt: skip
        if isinstance(obj, Tensor):
            return _Name("torch._utils", "_rebuild_tensor_v2"), self._parts(obj)
        if isinstance(obj, Size):
            return _Name("torch", "Size"), (tuple(obj),)
        if isinstance(obj, Device):
            place = (obj.type,) if obj.index is None else (obj.type, obj.index)
            return _Name("torch", "device"), place
        return NotImplemented

    def _parts(self, tensor: Tensor) -> tuple[Any, ...]:
        window = tensor.window
        if window.dtype not in _STORAGES:
            raise UnsupportedError(
                f"saving a tensor of {window.dtype} is not simulated", [site_fact(call_site())]
            )
        same = (id(tensor.memory), window.offset, window.shape, window.strides, window.dtype)
        stored = self._known.get(same)
        if stored is None:
            values = np.ascontiguousarray(host_array(tensor, "torch.save"))
            key = str(len(self._known))
            stored = _Stored(key, window.dtype, str(tensor.device), window.numel)
            self._known[same] = stored
            self._alive.append(tensor)
            _write(self._archive, f"data/{key}", values.tobytes())
        shape = window.shape
        return (stored, 0, shape, contiguous_strides(shape), tensor.requires_grad, OrderedDict())


def _write(archive: "ZipFile", name: str, content: bytes) -> None:
    from zipfile import ZipInfo

    # Without a date, so that equal objects give equal files.
    archive.writestr(ZipInfo(f"archive/{name}"), content)


@contextmanager
def _opened(f: File, mode: str) -> Iterator[Any]:
    if isinstance(f, str | PathLike):
        with open(fspath(f), mode) as file:
            yield file
    else:
        yield f


def save(
    obj: object,
    f: File,
    pickle_module: Any = pickle,
    pickle_protocol: int = 2,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
) -> None:
    """Writes an object with tensors to a file that `load` reads, and PyTorch's `torch.load`.

    The host waits for the values of tensors on a device.

    Args:
        obj: The object, such as a state dict.
        f: Path of the file, or a file that is open for writing bytes.
        pickle_module: Must be Python's `pickle`.
        pickle_protocol: Must be 2.

    Raises:
        UnsupportedError: For other values of arguments that are not simulated, and 8-bit floats.
        NoDataError: While data is off.
    """
    refuse(
        "save",
        pickle_module=None if pickle_module is pickle else pickle_module,
        pickle_protocol=None if pickle_protocol == 2 else pickle_protocol,
        _use_new_zipfile_serialization=None if _use_new_zipfile_serialization else False,
        _disable_byteorder_record=_disable_byteorder_record or None,
    )
    from zipfile import ZipFile

    whole, text = io.BytesIO(), io.BytesIO()
    with ZipFile(whole, "w") as archive:
        _Pickler(text, archive).dump(obj)
        _write(archive, "data.pkl", text.getvalue())
        _write(archive, "byteorder", sys.byteorder.encode())
        _write(archive, "version", b"3\n")
    with _opened(f, "wb") as file:
        file.write(whole.getvalue())


# That of the standard library in Python, too: only it lets a class say what state may be set.
class _Unpickler(pickle._Unpickler):
    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(
        self, file: IO[bytes], archive: "ZipFile", root: str, where: Where, only: bool
    ) -> None:
        super().__init__(file, encoding="utf-8")
        self._archive = archive
        self._root = root
        self._where = where
        self._only = only
        self._loaded: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _TYPES:
            return _TYPES[name]
        if module == "torch" and name in _NAMED:
            return _NAMED[name]
        if module == "torch._utils" and name in _MADE:
            return _MADE[name]
        plain = _PLAIN.get((module, name))
        if plain is not None:
            return plain
        if self._only:
            raise SaveError(
                f"torch.load: the file names {module}.{name}, which weights_only=True does not "
                "allow",
                [site_fact(call_site())],
                hint="save state dicts; or load with weights_only=False a file that you trust",
            )
        ours = f"kernbench.{module}" if module.partition(".")[0] == "torch" else module
        return super().find_class(ours, name)

    def _load_build(self) -> None:
        # Otherwise a file could set attributes of the classes and functions that it may name.
        changed = self.stack[-2]  # type: ignore[attr-defined]
        if self._only and not isinstance(changed, OrderedDict):
            raise SaveError(
                f"torch.load: the file sets the state of {type_name(changed)}, which "
                "weights_only=True does not allow",
                [site_fact(call_site())],
                hint="save state dicts; or load with weights_only=False a file that you trust",
            )
        pickle._Unpickler.load_build(self)  # type: ignore[attr-defined]

    dispatch[pickle.BUILD[0]] = _load_build

    def persistent_load(self, pid: Any) -> Tensor:
        _, dtype, key, location, count = pid
        found = self._loaded.get(key)
        if found is None:
            content = _read(self._archive, f"{self._root}/data/{key}")
            if len(content) != count * dtype.itemsize:
                raise _damaged(
                    f"tensor {key} has {len(content)} bytes, expected {count * dtype.itemsize}"
                )
            values = np.frombuffer(content, dtype.numpy)
            found = from_numpy(values.copy()).to(_place(self._where, location))
            self._loaded[key] = found
        return found


def _read(archive: "ZipFile", name: str) -> bytes:
    from zipfile import BadZipFile

    try:
        return archive.read(name)
    except (KeyError, BadZipFile) as error:
        raise _damaged(f"{name} cannot be read: {error.args[0]}") from None


def _damaged(why: str) -> SaveError:
    return SaveError(f"torch.load: the file is damaged: {why}", [site_fact(call_site())])


def _place(where: Where, location: str) -> Any:
    if where is None:
        return location
    if isinstance(where, Mapping):
        return where.get(location, location)
    if callable(where) and not isinstance(where, Device):
        found = where(empty(0, dtype=dtypes.uint8, device="cpu"), location)
        return location if found is None else found.device
    return where


def _tensor(
    storage: Tensor,
    offset: int,
    size: Any,
    stride: Any,
    requires_grad: bool = False,
    *_: Any,
) -> Tensor:
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if 0 not in size and not 0 <= last < storage.window.numel:
        raise SaveError(
            f"torch.load: a tensor of shape {list(size)} lies beyond its memory",
            [site_fact(call_site())],
        )
    found = alias(storage, tuple(size), tuple(stride), offset)
    return found.requires_grad_() if requires_grad else found


def _parameter(data: Tensor, requires_grad: bool, *_: Any) -> Parameter:
    return Parameter(data, requires_grad)


_MADE: Final = {"_rebuild_tensor_v2": _tensor, "_rebuild_parameter": _parameter}
_NAMED: Final = {"Size": Size, "device": Device, **{each.name: each for each in dtypes.ALL}}


def load(
    f: File,
    map_location: Where = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args: Any,
) -> Any:
    """Returns what `save` wrote to a file, or PyTorch's `torch.save`.

    A tensor goes to the device that it was saved from. A rank that loads what another one saved
    from its device is told to say where (M14); PyTorch would fill the other rank's device.

    Args:
        f: Path of the file, or a file that is open for reading bytes.
        map_location: Where the tensors go: a device for all; a mapping of saved devices to others;
            or a function that takes an empty tensor on the host and the saved device, and returns a
            tensor on the device, or None for the saved one.
        pickle_module: Must be None.
        weights_only: Whether to refuse files that name anything but tensors and plain values; True
            by default.
        mmap: Must be None or False.
        **pickle_load_args: Must be empty.

    Raises:
        SaveError: If the file is none of these or damaged, is open at another place than its
            begin, or names what `weights_only` does not allow.
        UnsupportedError: For other values of arguments that are not simulated.
        OwnershipError: If a tensor goes to another rank's device (M14).
    """
    refuse("load", pickle_module=pickle_module, mmap=mmap or None, **pickle_load_args)
    from zipfile import ZipFile, is_zipfile

    with _opened(f, "rb") as file:
        begin = file.read(4)
        if begin != b"PK\3\4" or not is_zipfile(file):
            raise SaveError(
                "torch.load: the file is no archive of torch.save"
                if begin
                else "torch.load: nothing is left to read in the file",
                [site_fact(call_site())],
                hint="files of PyTorch before 1.6: load and save them with a later PyTorch"
                if begin
                else "call seek(0) before, if the file was just written",
            )
        file.seek(0)
        with ZipFile(file) as archive:
            pickled = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(pickled) != 1:
                raise _damaged("it has no data.pkl, which torch.save writes")
            text = io.BytesIO(_read(archive, pickled[0]))
            root, only = pickled[0].removesuffix("/data.pkl"), weights_only is not False
            try:
                return _Unpickler(text, archive, root, map_location, only).load()
            except (KernbenchError, ImportError, AttributeError):
                raise
            except Exception as error:
                if call_site_of(error) is not None:  # of a callback or class of the user
                    raise
                raise _damaged(
                    f"{pickled[0]} cannot be read: {type(error).__name__} {error}"
                ) from None
