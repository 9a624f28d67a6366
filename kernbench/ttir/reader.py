"""Reads the text of Triton's IR, as its compiler writes it after the last pass on TTIR.

MLIR prints each operation in a form of its own. All of them consist of the same parts, in an order
that says which is which: `results = name operands and words {attributes} (regions) : types`. So one
reader serves all operations but loops, whose region has arguments that the head names.
"""

from collections.abc import Callable, Sequence

from kernbench.ttir.cursor import END, Cursor, TypesSaid
from kernbench.ttir.module import (
    Attribute,
    Block,
    Function,
    Module,
    Operation,
    Region,
    Successor,
    Value,
)
from kernbench.ttir.tokens import TextError, unquoted
from kernbench.ttir.types import Type


def read(text: str) -> Module:
    """Returns the module that a text describes.

    Raises:
        TextError: If it is not what Triton's compiler writes.
    """
    return _Reader(text).module()


class _Reader(Cursor):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._names: dict[str, Sequence[Value]] = {}
        self._count = 0

    def module(self) -> Module:
        functions: dict[str, Function] = {}
        while (token := self._next()) is not END:
            if token.text == "tt.func":
                function = self._function()
                functions[function.name] = function
        kernels = [function for function in functions.values() if function.public]
        if len(kernels) != 1:
            raise TextError(
                f"the text has {len(kernels)} public functions, where a kernel is one",
                hint="give the text that Triton's compiler writes into `.ttir` files",
            )
        return Module(functions, kernels[0])

    # Values.

    def _define(self, name: str, types: Sequence[Type]) -> Sequence[Value]:
        made = [Value(self._count + place, one, name[1:]) for place, one in enumerate(types)]
        self._count += len(made)
        self._names[name] = made
        return made

    def _value(self) -> Value:
        name, _, place = self._next().text.partition("#")
        found = self._names.get(name)
        if found is None:
            self._at -= 1
            self._refuse(f"{name} has not been defined")
        return found[int(place or 0)]

    # Functions, blocks.

    def _function(self) -> Function:
        self._names, self._count = {}, 0
        public = not self._took("private")
        self._took("public")
        name = self._next().text.lstrip("@").strip('"')
        self._expect("(")
        arguments: list[Value] = []
        while not self._took(")"):
            arguments.append(self._argument())
            self._took(",")
        results = self._type_list() if self._took("->") else []
        if self._took("attributes"):
            self._attributes()
        body = self._region() if self._is("{") else []
        return Function(name, arguments, results, body, self._count, public and bool(body))

    def _argument(self) -> Value:
        """Reads `%name: type {attributes} loc(...)`."""
        name = self._next().text
        self._expect(":")
        (value,) = self._define(name, [self._type()])
        if self._is("{"):
            self._attributes()
        self._location()
        return value

    def _region(self, arguments: Callable[[], Sequence[Value]] | None = None) -> Region:
        """Reads `{ blocks }`.

        Args:
            arguments: Defines what the first block is given, where the operation's head names it.
        """
        outer = self._names
        self._names = dict(outer)
        self._expect("{")
        blocks = [Block("^bb0")]
        if arguments is not None:
            blocks[0].arguments = list(arguments())
        while not self._took("}"):
            token = self._peek()
            if token is END:
                self._refuse("the text ends inside of a region")
            if token.kind == "block":
                self._at += 1
                if blocks[-1].operations or len(blocks) > 1 or token.text != "^bb0":
                    blocks.append(Block(token.text))
                block = blocks[-1]
                if self._took("("):
                    while not self._took(")"):
                        block.arguments.append(self._argument())
                        self._took(",")
                self._expect(":")
                continue
            blocks[-1].operations.append(self._operation())
        self._names = outer
        return blocks

    # Operations.

    def _operation(self) -> Operation:
        results: list[tuple[str, int]] = []
        while self._peek().kind == "value":
            name, count = self._next().text, 1
            if self._took(":"):
                count = int(self._next().text)
            results.append((name, count))
            self._took(",")
        if results:
            self._expect("=")
        name = self._next().text.strip('"')
        operation = Operation(name)
        if name == "scf.for":
            types = self._for(operation)
        elif name == "scf.while":
            types = self._while(operation)
        else:
            types = self._parts(operation)
        found = self._result_types(operation, types, sum(count for _, count in results))
        made: list[Value] = []
        for result, count in results:
            made += self._define(result, found[len(made) : len(made) + count])
        operation.results = made
        return operation

    def _parts(self, operation: Operation) -> TypesSaid:
        """Reads what follows the name of an operation, up to its end."""
        operands: list[Value] = []
        words: list[str] = []
        attributes: dict[str, Attribute] = {}
        regions: list[Region] = []
        successors: list[Successor] = []
        types = TypesSaid()
        constant = operation.name == "arith.constant"
        depth = 0
        while True:
            token = self._peek()
            if token is END or (token.first and not depth) or token.text == "}":
                break
            if token.text == "loc" and self._is("(", 1):
                operation.sites = self._location()
                if not depth:
                    break
            elif token.kind == "value":
                operands.append(self._value())
            elif token.kind == "block":
                successors.append(self._successor())
            elif token.text == "{":
                ahead = self._tokens[self._at + 1]
                if ahead.first:
                    regions.append(self._region())
                else:
                    attributes.update(self._attributes())
            elif token.text == "<" and self._is("{", 1):
                self._at += 1
                attributes.update(self._attributes())
                self._expect(">")
            elif token.text in "([" and token.kind == "sign":
                self._at += 1
                depth += 1
            elif token.text in ")]" and token.kind == "sign":
                self._at += 1
                depth -= 1
            elif token.text == ":" and not depth:
                self._at += 1
                if self._peek().kind != "value":  # as in `tt.print "x: " : %x : i32`
                    self._all_types(types)
            elif token.text == "->" and not depth:
                self._at += 1
                types.results = self._type_list()
            elif constant and token.kind in ("word", "number"):
                attributes["value"] = self._attribute(":")
                if token.text in ("true", "false"):
                    types.given = [Type("i1")]
            else:
                self._at += 1
                if token.kind != "sign":
                    words.append(unquoted(token.text) if token.kind == "string" else token.text)
        if types.left:
            attributes["left"] = types.left
        operation.operands, operation.words, operation.attributes = operands, words, attributes
        operation.regions, operation.successors = regions, successors
        return types

    def _for(self, operation: Operation) -> TypesSaid:
        """Reads `%i = %low to %high step %step iter_args(%a = %b) -> (types) : i32 {...}`."""
        if self._took("unsigned"):
            operation.words = ["unsigned"]
        counter = self._next().text
        self._expect("=")
        low = self._value()
        self._expect("to")
        high = self._value()
        self._expect("step")
        step = self._value()
        carried, initial, types = list[str](), list[Value](), TypesSaid()
        if self._took("iter_args"):
            carried, initial = self._assignments()
            self._expect("->")
            types.results = self._type_list()
        if self._took(":"):
            self._type()
        given = [value.type for value in initial]

        def arguments() -> Sequence[Value]:
            made = list(self._define(counter, [low.type]))
            for name, one in zip(carried, given, strict=True):
                made += self._define(name, [one])
            return made

        operation.operands = [low, high, step, *initial]
        operation.regions = [self._region(arguments)]
        if self._is("{"):
            operation.attributes = self._attributes()
        operation.sites = self._location()
        return types

    def _while(self, operation: Operation) -> TypesSaid:
        """Reads `(%a = %b) : (types) -> (types) {...} do {...}`."""
        carried, initial = self._assignments() if self._is("(") else ([], [])
        types = TypesSaid()
        self._expect(":")
        self._all_types(types)

        def arguments() -> Sequence[Value]:
            made: list[Value] = []
            for name, value in zip(carried, initial, strict=True):
                made += self._define(name, [value.type])
            return made

        operation.operands = initial
        before = self._region(arguments)
        self._expect("do")
        operation.regions = [before, self._region()]
        if self._took("attributes"):
            operation.attributes = self._attributes()
        operation.sites = self._location()
        return types

    def _assignments(self) -> tuple[list[str], list[Value]]:
        """Reads `(%a = %b, ...)`."""
        names: list[str] = []
        values: list[Value] = []
        self._expect("(")
        while not self._took(")"):
            names.append(self._next().text)
            self._expect("=")
            values.append(self._value())
            self._took(",")
        return names, values

    def _successor(self) -> Successor:
        """Reads `^bb1(%a, %b : types)`."""
        label = self._next().text
        operands: list[Value] = []
        if self._took("("):
            while self._peek().kind == "value":
                operands.append(self._value())
                self._took(",")
            if self._took(":"):
                while not self._is(")"):
                    self._type()
                    self._took(",")
            self._expect(")")
        return Successor(label, operands)

    def _result_types(self, operation: Operation, types: TypesSaid, count: int) -> Sequence[Type]:
        """Returns the types of an operation's results, which the text may leave to be inferred."""
        if not count:
            return []
        if types.results is not None:
            found = types.results * count if operation.name == "tt.split" else types.results
        elif operation.name in ("arith.cmpi", "arith.cmpf"):
            found = [operation.operands[0].type.of("i1")]
        elif operation.name == "tt.addptr":
            found = types.given[:1]
        elif operation.name == "tt.load":
            found = [operation.operands[0].type.pointee]
        elif operation.name == "tt.unsplat":
            found = [Type(types.given[0].element)]
        elif operation.name == "arith.addui_extended":
            found = types.given[:2]
        elif operation.name.endswith("_extended"):
            found = types.given[:1] * 2
        else:
            found = types.given[-1:]
        if len(found) != count:
            self._refuse(f"{operation.name} has {count} results and {len(found)} types")
        return found
