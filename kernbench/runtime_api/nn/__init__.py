"""`torch.nn`: modules, what they are made of, and the same module on several ranks."""
