"""Functions and a module for `torch.jit.script`, which reads their source and annotations."""

import torch


def make(x: torch.Tensor, count: int) -> torch.Tensor:
    made = torch.zeros(count, device=x.device) + torch.arange(count, device=x.device)
    return made + torch.empty(x.shape, device=x.device).fill_(1.0)


def outer(x: torch.Tensor) -> torch.Tensor:
    return make(x, 3) * torch.full_like(x, 2.0) + x


def of_nothing(count: int) -> torch.Tensor:
    return torch.rand(count) + torch.ones(count)


def wrong(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x, "no")


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + torch.ones(3, device=x.device)
