"""The real core in worlds that can be searched: the explorer tries every interleaving of a small one."""
