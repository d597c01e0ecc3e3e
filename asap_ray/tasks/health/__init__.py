"""What `task=doctor` looks at, a file an area."""
