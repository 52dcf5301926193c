"""Failures on order, for tests and for users who want to see what happens. Off by default, at no cost."""
