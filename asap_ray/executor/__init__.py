"""Where the jobs of a tier run."""
