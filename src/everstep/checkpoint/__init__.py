"""Two-tier checkpoints: to memory (k0), then to storage (k1) while the next t steps train."""
