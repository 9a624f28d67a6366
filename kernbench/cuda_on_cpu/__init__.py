"""Operations that PyTorch has for CUDA alone, computed by a CPU."""
