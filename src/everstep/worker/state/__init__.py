"""The protected state: found in the script's objects, taken apart into plain values and tensors, put back.

It knows torch, and neither the protocol nor connections. No pickle: what it cannot take apart is refused by name.
"""
