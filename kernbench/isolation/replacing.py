"""Names of libraries that are replaced, and modules of these that are imported while ranks run.

Python runs such a module as it does outside of ranks: what it takes from others is PyTorch's own.
"""

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType
from typing import Any, Final

from kernbench.isolation.belonging import is_of_rank
from kernbench.isolation.here import HERE
from kernbench.isolation.replaced import Patch, WhenImported, run_within


class Replacing:
    """Names that are replaced; a finder of modules, which lets them run with the real ones.

    Args:
        libraries: The packages whose names are replaced.
        check: Called with the name of each module of these that has been imported.
        importing: Takes a module, and gives a block inside of which it is imported.
        unseen: Gives a block in which nothing that runs is the rank's.
    """

    def __init__(
        self,
        libraries: Collection[str],
        check: Callable[[str], None],
        importing: Callable[[ModuleType], AbstractContextManager[None]],
        unseen: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._libraries: Final = libraries
        self._unseen: Final = unseen
        self._check: Final = check
        self._around: Final = importing
        self._patches: list[Patch] = []
        self._before: list[Patch] = []
        self._waiting: list[WhenImported] = []
        self._imported: list[str] = []
        self._depth = 0

    def add(self, patch: Patch | WhenImported) -> None:
        """Replaces a name, or names of a module once it is there.

        Args:
            patch: The name, and what stands there from now on; or the module.
        """
        if isinstance(patch, Patch):
            _name_as_real(patch)
            self._patches.append(patch)
            self._put(patch)
        elif patch.module in sys.modules:
            for each in patch.patches(sys.modules[patch.module]):
                self.add(each)
        else:
            self._waiting.append(patch)

    def _put(self, patch: Patch) -> None:
        before = vars(patch.owner).get(patch.name, _MISSING)
        self._before.append(Patch(patch.owner, patch.name, before))
        setattr(patch.owner, patch.name, patch.value)

    def undo(self) -> None:
        """Puts back what was replaced."""
        for patch in reversed(self._before):
            if patch.value is _MISSING:
                delattr(patch.owner, patch.name)
            else:
                setattr(patch.owner, patch.name, patch.value)
        self._before.clear()

    def real_of(self) -> dict[int, Any]:
        """Returns the real names, by the identities of what stands for them."""
        pairs = zip(self._patches, self._before, strict=True)
        return {id(patch.value): before.value for patch, before in pairs}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Finds a module of a library as Python does; it runs as it does outside of ranks.

        Args:
            path: Where to look, as `PathFinder` takes it.
            target: Not used, as by `PathFinder`.
        """
        library = name.partition(".")[0] in self._libraries
        if not library and all(each.module != name for each in self._waiting):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        run_within(spec, self._importing if library else self._watching)
        return spec

    @contextlib.contextmanager
    def _watching(self, module: ModuleType) -> Iterator[None]:
        """Lets a module of a program run as its others do; then its names are replaced."""
        own = is_of_rank(module.__name__, module.__spec__)
        with contextlib.nullcontext() if own else self._around(module):
            yield
            for each in [each for each in self._waiting if each.module == module.__name__]:
                self._waiting.remove(each)
                for patch in each.patches(module):
                    self.add(patch)

    @contextlib.contextmanager
    def _importing(self, module: ModuleType) -> Iterator[None]:
        with self._around(module), self.undone():
            yield
            self._imported.append(module.__name__)

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Lets the real names stand until the end of the block."""
        if self._depth:  # a module imports others
            yield
            return
        rank, HERE.rank = HERE.rank, None
        self._depth += 1
        standing = [vars(patch.owner).get(patch.name, _MISSING) for patch in self._patches]
        self.undo()
        try:
            with self._unseen():
                yield
        finally:
            self._come()  # also after an error: some modules may be there
            self._depth -= 1
            HERE.rank = rank
            for patch in self._patches:
                self._put(patch)
            # Without those of the module, which follow.
            for patch, stood in zip(self._patches, standing, strict=False):
                if stood is not patch.value and stood is not _MISSING:  # the program's own
                    setattr(patch.owner, patch.name, stood)

    def _come(self) -> None:
        """Takes up what waited for modules that have been imported."""
        imported, self._imported = self._imported, []
        for name in imported:
            self._check(name)
        come = [each for each in self._waiting if each.module in imported]
        for each in come:
            self._waiting.remove(each)
            for patch in each.patches(sys.modules[each.module]):
                _name_as_real(patch)
                self._patches.append(patch)


def _name_as_real(patch: Patch) -> None:
    """Names a function as the one that it stands for: libraries replace functions by that."""
    value, owner = patch.value, patch.owner
    if isinstance(value, FunctionType):
        value.__name__ = value.__qualname__ = patch.name
        if isinstance(owner, ModuleType):
            value.__module__ = owner.__name__
        else:
            value.__qualname__ = f"{owner.__name__}.{patch.name}"


_MISSING: Final = object()
