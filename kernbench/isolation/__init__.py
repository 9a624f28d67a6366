"""What each rank of an ordinary program has for itself, as a process of its own would."""
