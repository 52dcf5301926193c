"""The protocol, pure: events in, effects out. No sockets, no clock, no torch, no asyncio in this folder.

Read `machine` for the controller's side and `worker` for the worker's; each opens with its transition table.
"""
