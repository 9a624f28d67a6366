"""Operations on tensors, as `torch` has them, and `torch.cuda`."""
