"""`torch.nn`: modules, layers, losses."""
