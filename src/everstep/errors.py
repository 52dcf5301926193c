"""Every error that everstep raises on purpose.

EverstepError
├── ConfigError            a setting that cannot work: the value and the rule (exit code 2)
├── ProtocolError
│   ├── InvalidTransition  an event that the state machine does not know in its present state
│   └── WireError          bytes on a connection that break the rules; that connection is closed
│       └── AuthError      the two sides cannot be partners: token or protocol version
├── ResourceError          the machine does not give what is needed: what, how much, and what to do
├── BoardError             a file that is no board, or a board that does not hold still
├── SpawnError             a worker process could not be started, or the process that starts them died
└── ModelViolation         the explorer found a state that breaks an invariant
"""

from __future__ import annotations


class EverstepError(Exception):
    """Base of all of them."""


class ConfigError(EverstepError, ValueError):
    """A setting that cannot work. Says the value, the rule, and what to write instead."""


class ProtocolError(EverstepError):
    """Somebody broke the protocol."""


class InvalidTransition(ProtocolError):
    """An event that the transition table does not know for a state."""

    def __init__(self, state: object, event: object, recent: tuple[object, ...] = ()) -> None:
        self.state = state
        self.event = event
        self.recent = recent
        lines = [f"no transition from {state} on {event}"]
        if recent:
            lines.append("the last events were:")
            lines.extend(f"  {past}" for past in recent)
        super().__init__("\n".join(lines))


class WireError(ProtocolError):
    """A connection broke a rule: size, format, message, deadline, backlog. The text is the reason."""


class AuthError(WireError):
    """The two sides cannot be partners. Trying again does not help: the text says what must be changed."""


class ResourceError(EverstepError):
    """The machine does not give what is needed. Says what, how much, and what to do."""


class BoardError(EverstepError):
    """A file that is no board of this layout, or one that never held still while it was read."""


class SpawnError(EverstepError):
    """A worker process could not be started, or the process that starts them is gone."""


class ModelViolation(EverstepError):
    """An invariant does not hold in a state that the explorer reached."""
