"""asap_ray: find the plan with the shortest training step that fits, prove it, and say why."""

__version__ = "0.1.0"
