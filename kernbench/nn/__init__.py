"""`torch.nn` and `torch.optim`: modules, losses, optimisers, data parallelism."""
