"""`torch.distributed`: groups, works, stores, and collectives on blocks over the same bytes."""
