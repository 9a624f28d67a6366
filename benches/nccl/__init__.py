"""What the benches share that measure operations between ranks in nccl-tests' manner."""
