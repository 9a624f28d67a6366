"""Ranks that repeat what another rank does, without running the program (`--same-ranks`)."""
