"""Ways to evaluate a plan, cheap to dear, behind one protocol."""
