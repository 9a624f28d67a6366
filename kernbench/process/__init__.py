"""One rank, or main: its host's clock, its streams, the commands that it issues."""
