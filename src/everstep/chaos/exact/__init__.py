"""A training whose every bit is written down, in many variants: what a run with failures is compared with."""
