"""Short real trainings of asap_ray's own trainer: what a trial on devices runs, and what it tells."""
