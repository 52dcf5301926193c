"""The two long proofs start first, one on each of two xdist workers, so that the suite does not wait for them."""

import os

import pytest

LONG = "long_proof"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{LONG}: takes tens of seconds, so it starts first")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """xdist hands the first n / (4 · workers) tests to its first worker, as many to the second, and so on."""
    proofs = [item for item in items if item.get_closest_marker(LONG)]
    items[:] = [item for item in items if item not in proofs]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    chunk = max((len(items) + len(proofs)) // (4 * workers), 2)
    for index, proof in enumerate(proofs):
        items.insert(index * chunk if workers > 1 else index, proof)
