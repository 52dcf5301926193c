"""What a worker does with checkpoints: copies its share to memory (k0), and loads one from memory or storage.

It knows torch and the process groups. The files of slots and of storage are the business of `everstep.checkpoint`.
"""
