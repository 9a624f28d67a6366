"""What the names of PyTorch mean here: context, tensors, streams, distributed, multiprocessing."""
