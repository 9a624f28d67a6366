"""`torch.distributed`: groups, collectives, messages, objects, meshes."""
