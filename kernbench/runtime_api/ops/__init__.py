"""Operations on tensors: what each is called, checks, computes and costs."""
