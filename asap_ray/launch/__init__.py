"""Where else a command can run: what a cluster's own tools take, rendered from one description of the job."""
