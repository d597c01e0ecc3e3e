"""Fits the constants of `conf/calibration/` to measured runs, and says how well they predict runs that were left
out."""
