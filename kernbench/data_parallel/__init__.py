"""`torch.nn.parallel`: a module on several ranks, whose gradients are averaged."""
