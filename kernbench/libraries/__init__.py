"""What libraries on PyTorch are given of a run."""
