"""Checkpoints in, parameter archives out. Nothing here needs torch."""
