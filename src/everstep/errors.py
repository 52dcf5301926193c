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
├── RuleError              the script breaks a rule of protected training: which, where, and what to write instead
├── StateError             protected state that does not fit, or that is not what its donor sent
│   └── LostError          protected state that nobody has any more
├── CheckpointError        a saved state that is missing, damaged or does not fit: where, and what is wrong
│   ├── Unreadable         storage does not give it now; nothing says that it is damaged
│   └── SlotHeld           a memory checkpoint that must not be overwritten now
└── ModelViolation         the explorer found a state that breaks an invariant

Interruption, a BaseException, is none of them: it unwinds a step that a recovery has dropped.
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


class RuleError(EverstepError):
    """The script breaks a rule of protected training. Says which one, where, and what to write instead."""


class StateError(EverstepError):
    """Protected state that does not fit its place, or that is not what its donor sent."""


class LostError(StateError):
    """State that nobody has any more. To try again does not help."""


class CheckpointError(EverstepError):
    """A saved state that is missing, damaged, or does not fit. Says where it is and what is wrong with it."""


class Unreadable(CheckpointError):
    """Storage did not give what was asked for. The saved state may be good; to try again may help."""


class SlotHeld(CheckpointError):
    """This memory checkpoint is still needed; it must not be overwritten now."""


class Interruption(BaseException):
    """Unwinds a step that is done again. Not an Exception, so that no ``except Exception`` of the script eats it;
    whoever eats it all the same meets it again at each of our calls until ``with step:`` is left."""
