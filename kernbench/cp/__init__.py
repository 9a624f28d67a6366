"""Attention over sequences that ranks share."""
