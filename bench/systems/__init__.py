"""What `bench.compare` compares: each system measures sections in processes of its own."""
