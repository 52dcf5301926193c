"""What is told of a run: one record per recovery. Watches the core's machine from outside and decides nothing."""
