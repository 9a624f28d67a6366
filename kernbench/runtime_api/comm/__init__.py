"""What `torch.distributed` means: groups, collectives, messages between ranks."""
