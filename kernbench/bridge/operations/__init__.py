"""Operations of PyTorch as CUDA runs them: which kernels they are, and how long they take."""
