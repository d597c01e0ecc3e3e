"""The trainer: a decoder-only transformer as one manual `shard_map` program, compiled as it would run."""
