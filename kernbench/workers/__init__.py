"""Processes that serve requests over a private stream; see the README."""
