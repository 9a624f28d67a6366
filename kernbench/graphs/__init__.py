"""CUDA graphs: commands of a rank, noted once and issued again by one call of the host."""
