"""Starts the parts of a job: all of them on this machine, or one of them where a scheduler has put us."""
