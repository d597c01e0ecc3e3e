"""Foreign formats, read as workloads and plans and written from them."""
