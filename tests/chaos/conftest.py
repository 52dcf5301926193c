"""The stand-in for an agent and its worker processes come from the tests of the worker."""

from tests.worker.conftest import agent as agent
