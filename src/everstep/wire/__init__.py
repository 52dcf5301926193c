"""Connections between our processes. Which messages there are, and what they mean, is told elsewhere.

`framing`, `codec` and `auth` do no I/O; `terms` is what two ends agree on; `channel` (asyncio), `blocking`
(threads) and `server` move the bytes.
"""
