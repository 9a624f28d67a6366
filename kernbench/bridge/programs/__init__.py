"""What programs use of PyTorch beside tensors, devices and groups; the list of replaced names."""
