"""What all of the bridge stands on: the rank, names that are replaced, refused, or checked."""
