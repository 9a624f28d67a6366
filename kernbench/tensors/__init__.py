"""What a tensor is: a window on memory, who may touch it, and how operations on it are recorded."""
