"""The compilers of TPUs and GPUs, asked on a machine that has neither."""
