"""`torch.optim`: optimisers, learning rates by plan, norms of gradients."""
