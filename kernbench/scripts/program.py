"""The file of a run as a program: a bench with `run(ctx)`, a script, or a script in every rank.

See ADR 0029.
"""

import ast
import builtins
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.machinery import ModuleSpec
from operator import index
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, SupportsIndex

from kernbench.des import current_task
from kernbench.errors import UsageError, libraries_passed_over
from kernbench.process.process import Process, current_process
from kernbench.ranks.environments import own_environments
from kernbench.ranks.spawning import runs_nothing
from kernbench.run_spec import PytorchRun, RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.processes import run_started
from kernbench.scripts.as_torch import as_torch
from kernbench.scripts.explaining import explain_names
from kernbench.scripts.pytorch import (
    check_pytorch,
    check_ranks,
    document_of,
    the_bridge,
)

Program = Callable[[RuntimeContext], int | None]
"""Runs on a context; if it returns a number, that is the exit code."""

_MOST_CODE: Final = 255
"""Greatest exit code; systems keep only the last byte of a greater one."""


@contextmanager
def program_of(spec: RunSpec, path: Path) -> Iterator[Program]:
    """Gives the program of a run; what `spec.as_torch` changes lasts until the end of the block.

    Raises:
        UsageError: If the file is no program, or cannot run as the specification says.
        SyntaxError: If the file is no Python.
    """
    path = path.resolve()
    if spec.pytorch is not None:
        _check_pytorch(spec, spec.pytorch)
        with libraries_passed_over(str(path)):
            yield _load_pytorch(spec, spec.pytorch, path)
        return
    with as_torch() if spec.as_torch else nullcontext():
        try:
            program = _load(spec, path)
        except (ImportError, AttributeError) as error:
            explain_names(error)
            raise
        yield program


def _check_pytorch(spec: RunSpec, pytorch: PytorchRun) -> None:
    if spec.as_torch:
        raise UsageError(
            "pytorch and as_torch: expected one of them",
            hint="with pytorch, `import torch` is the real one",
        )
    if spec.default_device != "cuda":
        raise UsageError(
            f"default_device={spec.default_device!r}: PyTorch itself decides where tensors are made"
        )
    check_pytorch(spec, pytorch)
    if pytorch.nodes > 1 and spec.nproc_per_node is None:
        raise UsageError(
            f"--nnodes {pytorch.nodes}: expected --nproc-per-node, too",
            hint="--nproc-per-node 8: so many ranks run on each node",
        )


def _load_pytorch(spec: RunSpec, pytorch: PytorchRun, path: Path) -> Program:
    the_bridge()
    tree = _parsed(path)
    if pytorch.as_module:
        _put_first(Path.cwd())
    else:
        _put_first(path.parent)
        if _only_defines(tree):
            print(f"kernbench: {path.name} calls none of its functions", file=sys.stderr)
    code = compile(tree, str(path), "exec", dont_inherit=True)
    script = PytorchScript(path, code, spec, pytorch)
    return script.run_on_main if spec.nproc_per_node is None else script.run_in_ranks


def _parsed(path: Path) -> ast.Module:
    if path.suffix != ".py":
        raise UsageError(f"bench {path} is no Python file", hint="its name must end in .py")
    try:
        return ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise error.with_traceback(None) from None  # no frame of the parser
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no Python file: {error}") from None


def _load(spec: RunSpec, path: Path) -> Program:
    tree = _parsed(path)
    _let_import_neighbours(path)
    ranks = spec.nproc_per_node
    if is_bench(tree):
        if ranks is not None:
            raise UsageError(
                f"--nproc-per-node {ranks}: {path} has run(ctx), which spawns its ranks itself",
                hint="leave the option out; with it, every rank would run the file as `__main__`",
            )
        return partial(_run_bench, load_bench(path).run, path)
    _check_does_something(tree, path)
    if not spec.as_torch and _uses_pytorch(tree):
        print(
            f"kernbench: {path.name} imports PyTorch itself, which is not simulated here; "
            "`kernbench torchrun` simulates it, and --as-torch lets `import torch` mean "
            "kernbench.torch",
            file=sys.stderr,
        )
    code = compile(tree, str(path), "exec", dont_inherit=True)
    script = Script(path, code, spec)
    return script.run_on_main if ranks is None else script.run_in_ranks


def _let_import_neighbours(path: Path) -> None:
    """Lets a file import its neighbours and its own package, before others of the same name."""
    for folder in (_outside_packages(path.parent), path.parent):
        _put_first(folder)


def _put_first(folder: Path) -> None:
    """Lets imports look into a folder first."""
    if str(folder) in sys.path:
        sys.path.remove(str(folder))
    sys.path.insert(0, str(folder))


def _outside_packages(folder: Path) -> Path:
    """Returns the folder that holds the outermost package around `folder`, or `folder` itself."""
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


# Which kind


def is_bench(tree: ast.Module) -> bool:
    """Returns whether a file is a bench: it has a `run`, and does not use it as a script would.

    If the file has an `if __name__ == "__main__":`, only `def run(ctx)` makes it a bench: scripts,
    too, have functions of this name.

    Args:
        tree: The file.
    """
    found: list[ast.stmt] = [node for node in _top(tree.body) if "run" in _bound(node)]
    if not found:
        return False
    if not any(_is_guard(node) for node in tree.body):
        return True
    last = found[-1]
    return isinstance(last, ast.FunctionDef | ast.AsyncFunctionDef) and _takes_ctx(last.args)


def _takes_ctx(taken: ast.arguments) -> bool:
    names = [*taken.posonlyargs, *taken.args]
    return bool(names) and names[0].arg == "ctx"


def _top(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements that run when a file is imported, those in blocks, too."""
    for node in body:
        yield node
        if not _is_guard(node) and isinstance(node, ast.If | ast.Try | ast.With):
            parts = [getattr(node, part, []) for part in ("body", "orelse", "finalbody")]
            for part in [*parts, *(each.body for each in getattr(node, "handlers", []))]:
                yield from _top(part)


def _bound(node: ast.stmt) -> set[str]:
    """Returns names that a statement binds; imports of the standard library do not count."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {
            name.id for each in targets for name in ast.walk(each) if isinstance(name, ast.Name)
        }
    if isinstance(node, ast.ImportFrom):
        root = (node.module or "").partition(".")[0]
        if root not in sys.stdlib_module_names:
            return {alias.asname or alias.name for alias in node.names}
    return set()


def _is_guard(node: ast.stmt) -> bool:
    """Returns whether a statement is `if __name__ == "__main__":`."""
    if not (isinstance(node, ast.If) and isinstance(node.test, ast.Compare)):
        return False
    sides = [node.test.left, *node.test.comparators]
    return any(isinstance(each, ast.Name) and each.id == "__name__" for each in sides)


_DEFINITIONS: Final = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
)


def _check_does_something(tree: ast.Module, path: Path) -> None:
    if _only_defines(tree):
        raise UsageError(
            f"{path} has no run(ctx), and as a script it calls none of its functions",
            hint="write `def run(ctx): ctx.multiprocessing.spawn(worker, nprocs=...)`, or call the "
            "function under `if __name__ == '__main__':`",
        )


def _only_defines(tree: ast.Module) -> bool:
    """Returns whether a file has functions, and does nothing at its top but to define things."""
    statements = [
        node
        for node in tree.body
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    functions = [node for node in statements if isinstance(node, ast.FunctionDef)]
    return bool(functions) and all(isinstance(node, _DEFINITIONS) for node in statements)


def is_of_pytorch(path: Path) -> bool:
    """Returns whether a file is a script for an installed PyTorch, and no bench.

    Args:
        path: The file; one that is not there, or no Python, is none.
    """
    try:
        tree = _parsed(path)
    except (UsageError, SyntaxError, OSError):
        return False
    return _uses_pytorch(tree) and not is_bench(tree)


def _uses_pytorch(tree: ast.Module) -> bool:
    """Returns whether a file imports an installed PyTorch, and nothing of kernbench."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").partition(".")[0])
    if "torch" not in names or "kernbench" in names:
        return False
    return sys.modules.get("torch") is not None or importlib.util.find_spec("torch") is not None


# A bench


def load_bench(path: Path) -> ModuleType:
    """Imports the file of a bench.

    Raises:
        UsageError: If the file has no function `run(ctx)`, or exits while it is imported.
    """
    _let_import_neighbours(path)
    spec = importlib.util.spec_from_file_location(f"bench_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit as stop:
        raise UsageError(
            f"{path} exits (with {stop.code!r}) while it is imported",
            hint="call sys.exit only in run(ctx), or under `if __name__ == '__main__':`",
        ) from stop
    entry: Callable[[Any], Any] | None = getattr(module, "run", None)
    if not callable(entry):
        raise UsageError(
            f"{path} has no run(ctx)",
            hint="write `def run(ctx): ctx.multiprocessing.spawn(worker, nprocs=...)`",
        )
    try:
        inspect.signature(entry).bind(None)
    except TypeError as error:
        raise UsageError(
            f"{path}: run{inspect.signature(entry)} cannot be called with a context: {error}",
            hint="write `def run(ctx)`; further arguments are in ctx.argv",
        ) from None
    return module


def _run_bench(
    run: Callable[[RuntimeContext], object], path: Path, ctx: RuntimeContext
) -> int | None:
    """Runs a bench and returns its exit code, if it has one.

    Raises:
        UsageError: If it returns something else, or nothing of it has run.
    """
    found = run(ctx)
    if found is None:
        return None
    if runs_nothing(found):
        raise UsageError(
            f"{path}: run(ctx) is a generator or a coroutine: calling it runs nothing",
            hint="write a plain function: `def run(ctx)`, without `async` and `yield`",
        )
    if isinstance(found, SupportsIndex) and not isinstance(found, bool):
        code = index(found)
        if 0 <= code <= _MOST_CODE:
            return code
    told = repr(found) if isinstance(found, bool | int | float | str) else type(found).__name__
    raise UsageError(
        f"{path}: run(ctx) returned {told}: expected None, or an exit code from 0 to {_MOST_CODE}",
        hint="append results to ctx.results, which `--json FILE` writes",
    )


# A script

keep_main: Callable[[ModuleType], None] | None = None
"""Called with each main module of a script, which Python itself would keep to the end; or None."""


class Script:
    """A file that runs as `__main__`, once or in every rank.

    Args:
        code: Its compiled content.
    """

    def __init__(self, path: Path, code: CodeType, spec: RunSpec) -> None:
        self._path: Final = path
        self._code: Final = code
        self._spec: Final = spec

    def run_on_main(self, ctx: RuntimeContext) -> None:
        """Runs the file once, as the main program of the context's host.

        Args:
            ctx: The context, which is entered.
        """
        del ctx  # functions of torch find it
        module = self._new_main()
        with self._as_process(module):
            try:
                exec(self._code, vars(module))
                run_started(at_end=True)
            except KeyError as error:
                if error.args and error.args[0] in _variables(0, 1):
                    error.add_note(f"hint: torchrun sets {error.args[0]}: {self._in_ranks}")
                raise

    @property
    def _in_ranks(self) -> str:
        return f"kernbench run {self._spec.bench} --nproc-per-node N"

    def run_in_ranks(self, ctx: RuntimeContext) -> None:
        """Runs the file in every rank, each with globals and `os.environ` of its own.

        Args:
            ctx: The context, which is entered.

        Raises:
            UsageError: If there are more ranks than devices.
            SpawnException: If a rank failed.
        """
        ranks = self._spec.nproc_per_node
        assert ranks is not None
        if ranks > len(ctx.devices):
            named = ctx.spec.devices != "all"
            raise UsageError(
                f"--nproc-per-node {ranks}: {ctx.spec.topology} has {len(ctx.devices)} devices for "
                "ranks" + (", which --devices names" if named else ""),
                hint="start fewer ranks, or name more devices there"
                if named
                else "start fewer ranks, or choose a larger machine with --topology",
            )
        with self._as_process(_MainOfEach([self._new_main() for _ in range(ranks)])):
            ctx.multiprocessing.spawn(self._run_as_rank, args=(ranks,), nprocs=ranks)

    def _run_as_rank(self, rank: int, ranks: int) -> None:
        os.environ.update(_variables(rank, ranks))
        exec(self._code, vars(sys.modules["__main__"]))

    def _new_main(self) -> ModuleType:
        module = ModuleType("__main__")
        content = {"__file__": str(self._path), "__builtins__": builtins, "__cached__": None}
        vars(module).update(content)
        if keep_main is not None:
            keep_main(module)
        return module

    @contextmanager
    def _as_process(self, main: ModuleType) -> Iterator[None]:
        """Makes `__main__`, `sys.argv` and `os.environ` those of the file."""
        before, argv = sys.modules["__main__"], sys.argv
        sys.modules["__main__"] = main
        sys.argv = [self._spec.bench or str(self._path), *self._spec.arguments]
        try:
            with own_environments():
                yield
        finally:
            sys.argv = argv
            sys.modules["__main__"] = before


class PytorchScript(Script):
    """A file with a program of PyTorch; ranks that it spawns are ranks of PyTorch, too.

    Args:
        path: See `Script`.
        code: See `Script`.
        spec: See `Script`.
        pytorch: What the specification says of the program.
    """

    def __init__(self, path: Path, code: CodeType, spec: RunSpec, pytorch: PytorchRun) -> None:
        super().__init__(path, code, spec)
        self._pytorch: Final = pytorch

    @property
    def _in_ranks(self) -> str:
        return f"kernbench torchrun --nproc-per-node N {self._spec.bench}"

    def run_on_main(self, ctx: RuntimeContext) -> None:
        """See `Script.run_on_main`."""
        with self._bridged(ctx, script=self._as_spawned) as run, run.main():
            super().run_on_main(ctx)

    @contextmanager
    def _bridged(self, ctx: RuntimeContext, **options: Any) -> Iterator[Any]:
        spec, pytorch = self._spec, self._pytorch
        folder = Path.cwd() if pytorch.as_module else self._path.parent
        bridged = the_bridge().bridged(
            data=spec.data,
            fake=pytorch.fake,
            same_ranks=pytorch.same_ranks,
            witnesses=pytorch.witnesses,
            folders=[folder],
            flight_folder=ctx.flight_folder,
            check_replicas=pytorch.check_replicas,
            **options,
        )
        with bridged as run:
            try:
                yield run
            finally:
                ctx.results.append(document_of(ctx, spec, run))

    def _as_spawned(self) -> ModuleType:
        """Runs the file as `__mp_main__`, as `multiprocessing` does in a process that it starts."""
        module = self._new_main()
        module.__name__ = "__mp_main__"
        sys.modules["__main__"] = sys.modules["__mp_main__"] = module
        exec(self._code, vars(module))
        return module

    def run_in_ranks(self, ctx: RuntimeContext) -> None:
        """See `Script.run_in_ranks`.

        Raises:
            UsageError: If the machine has not the nodes and devices that the ranks need.
            SpawnException: If a rank failed.
        """
        check_ranks(self._spec, ctx)
        each = self._spec.nproc_per_node
        assert each is not None
        ranks = each * self._pytorch.nodes
        mains = _MainOfEach([self._new_main() for _ in range(ranks)])
        with self._as_process(mains), self._bridged(ctx, ranks_per_node=each) as run:
            run.run(self._run_as_rank, (ranks,), ranks)

    def _run_as_rank(self, rank: int, ranks: int) -> None:
        os.environ.update(_variables(rank, ranks, self._pytorch.nodes))
        if self._pytorch.as_module and self._spec.bench == "pytest":
            # Ranks have one standard output, which pytest would take from the others.
            given = os.environ.get("PYTEST_ADDOPTS", "")
            os.environ["PYTEST_ADDOPTS"] = f"--capture=sys {given}"
        exec(self._code, vars(sys.modules["__main__"]))

    def _new_main(self) -> ModuleType:
        module = super()._new_main()
        if self._pytorch.as_module:
            assert self._spec.bench is not None
            name = self._spec.bench
            if self._path.name == "__main__.py":
                name += ".__main__"
            package = name.rpartition(".")[0]
            module.__package__ = package
            module.__spec__ = ModuleSpec(name, None, origin=str(self._path))
        return module


class _MainOfEach(ModuleType):
    """`sys.modules["__main__"]` of ranks that each have one; `pickle` looks for classes there."""

    def __init__(self, mains: Sequence[ModuleType]) -> None:
        super().__init__("__main__")
        object.__setattr__(self, "_mains", mains)

    def _mine(self) -> ModuleType:
        task = current_task()
        in_rank = task is not None and isinstance(task.subject, Process)
        mains: Sequence[ModuleType] = object.__getattribute__(self, "_mains")
        return mains[current_process().rank if in_rank else 0]

    def __getattribute__(self, name: str) -> Any:
        return getattr(_MainOfEach._mine(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_MainOfEach._mine(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_MainOfEach._mine(self), name)


_forking: ModuleType | None = None
"""The main module of the rank that forks; None outside of ranks."""


def _note_main() -> None:
    global _forking  # noqa: PLW0603 - a fork is of the whole process
    main = sys.modules.get("__main__")
    _forking = _MainOfEach._mine(main) if type(main) is _MainOfEach else None


def _keep_main() -> None:
    """Gives a fork the module of its rank: it is outside of the simulation, and has no rank."""
    if _forking is not None:
        sys.modules["__main__"] = _forking


os.register_at_fork(before=_note_main, after_in_child=_keep_main)


def _variables(rank: int, ranks: int, nodes: int = 1) -> dict[str, str]:
    """Returns what `torchrun` gives to a rank in `os.environ`."""
    each = ranks // nodes
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % each),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(each),
        "GROUP_RANK": str(rank // each),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(ranks),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
