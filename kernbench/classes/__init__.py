"""Ranks that do the same at the same times, and are simulated once."""
