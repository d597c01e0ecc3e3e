"""A decoder-only transformer in Flax, trained by one program in which every collective is written out.

The step is a single `jax.shard_map` that is manual over all six mesh axes. Activations between blocks are split over
every axis (batch over data, fsdp and expert; sequence over context and tensor; layers over pipeline), so that nothing
is computed twice, and what a compiler emits is what the physics predicts. Two rules make the gradients right:

- what is differentiated on a device is its own share of the loss, so that the loss is the sum over all devices;
- a weight's gradient is summed over exactly the axes on which the weight is replicated. Where it is sharded, the
  transpose of the all-gather that brings it together (a reduce-scatter) has summed it already.
"""
