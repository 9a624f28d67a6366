"""`torch.cuda` and what belongs to it: streams, events, memory, autocast, random numbers."""
