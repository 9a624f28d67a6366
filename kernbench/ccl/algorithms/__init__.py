"""Collective algorithms: one module each, with a function per collective that it implements."""
