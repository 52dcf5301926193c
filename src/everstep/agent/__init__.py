"""The agent: one per node. It starts the workers, watches them, keeps their logs, owns their shared memory.

Nothing is imported here: the zygote must start with as little as possible.
"""
