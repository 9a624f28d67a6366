"""Processes, that is ranks and main: the host's clock, the streams, the issued commands."""
