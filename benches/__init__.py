"""Benches: programs with a `run(ctx)` that `kernbench run` calls."""
