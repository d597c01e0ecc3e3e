"""Search methods against each other: the same plans, budget, evaluator and knowledge, on ground that nobody can argue
with."""
