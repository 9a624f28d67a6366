"""Collective algorithms from files: read, proved, lowered to plans, written, and drawn."""
