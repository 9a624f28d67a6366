"""What each kernel of the library costs, by family; for both torches, from the machine's file."""
