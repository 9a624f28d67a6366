"""`torch.utils.data`: sets of samples, orders, batches."""
