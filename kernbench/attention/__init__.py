"""Attention: which rows see which, and its numbers, blockwise."""
