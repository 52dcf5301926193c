"""Process groups that outlive their members: the outer one is the script's for ever, the inner one is of a generation.

It knows torch, and of everstep the errors and the words. What the job decides comes from the control thread.
"""
