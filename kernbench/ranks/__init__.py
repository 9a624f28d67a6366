"""Interaction of ranks: meetings, the graph of waits, and the begin and end of a spawn."""
