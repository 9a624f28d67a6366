"""Hooks that users register, and the handles that take them away again."""


class RemovableHandle:
    """`torch.utils.hooks.RemovableHandle`: takes a hook away again."""

    def __init__(self, hooks: dict[int, object], number: int) -> None:
        self._hooks = hooks
        self._number = number

    def remove(self) -> None:
        """Takes the hook away."""
        self._hooks.pop(self._number, None)

    def __enter__(self) -> "RemovableHandle":
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def add_hook(hooks: dict[int, object], hook: object) -> RemovableHandle:
    """Adds a hook behind the present ones, and returns a handle that takes the hook away."""
    number = max(hooks, default=-1) + 1
    hooks[number] = hook
    return RemovableHandle(hooks, number)
