"""Profiles: what a step does, op by op, whoever measured or simulated it."""
