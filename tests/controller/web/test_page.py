"""Who is answered, and how: this machine or the token, reading only, nothing for pages of others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.controller.web.conftest import Events, Shown, Site
from tests.observe.test_ledger import checkpoint

from everstep.controller.job import Page, RunDir
from everstep.controller.web import app, feed, server
from everstep.observe.records import encode
from everstep.wire.auth import Token


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One for all that changes nothing."""
    site = Site(Shown(tmp_path_factory.mktemp("still")))
    yield site
    site.close()


PATHS = ("/", "/live.js", "/live.css", "/api/status", "/api/recoveries", "/api/checkpoints", "/metrics", "/healthz")


@pytest.mark.parametrize("path", PATHS)
def test_each_path_answers_and_lets_nothing_in_from_elsewhere(still: Site, path: str) -> None:
    answer = still.ask(path)
    assert answer.code == 200
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert (answer.headers["X-Content-Type-Options"], answer.headers["Cache-Control"]) == ("nosniff", "no-store")


@pytest.mark.parametrize("path", [*PATHS, "/events"])
def test_the_head_of_a_path_has_no_body(still: Site, path: str) -> None:
    answer = still.ask(path, "HEAD")
    assert (answer.code, answer.body) == (200, b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_reading_is_allowed(still: Site, method: str) -> None:
    answer = still.ask("/api/status", method)
    assert (answer.code, answer.headers["Allow"]) == (405, "GET, HEAD")


def test_the_status_is_that_of_the_job(site: Site) -> None:
    site.shown.job.step(7, 7.0)
    assert site.ask("/api/status").json() == site.shown.status()


def test_records_are_there_with_their_number(site: Site, tmp_path: Path) -> None:
    assert site.ask("/api/recoveries").json() == {"total": 0, "recoveries": []}
    job = site.shown.job
    job.crash(1)
    job.recovered()
    (tmp_path / "recoveries.jsonl").write_bytes(encode(job.record))
    (tmp_path / "checkpoints.jsonl").write_bytes(checkpoint(10))
    found = site.ask("/api/recoveries").json()
    assert (found["total"], found["recoveries"][0]["sentence"]) == (1, job.record.sentence)
    assert site.ask("/api/checkpoints").json()["checkpoints"][0]["fate"] == "committed"


def test_prometheus_can_read_the_metrics(still: Site) -> None:
    answer = still.ask("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert {family.name for family in text_string_to_metric_families(answer.body.decode())} >= {"everstep_state"}


def test_what_is_not_there_is_told(still: Site) -> None:
    answer = still.ask("/nix")
    assert (answer.code, answer.body) == (404, b"Not Found; docs/api.md names what there is\n")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8080", "[::1]:99", "127.0.0.2:1"])
def test_names_of_this_machine_are_answered(still: Site, host: str) -> None:
    assert still.ask("/api/status", Host=host).code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "", "localhost.evil.example"])
def test_a_name_that_somebody_gave_to_this_machine_is_refused(still: Site, host: str) -> None:
    answer = still.ask("/api/status", Host=host)
    assert answer.code == 421
    assert b"train-1" not in answer.body


# ── with a token ─────────────────────────────────────────────────────────────────────────────────────────

TOKEN = Token("a-token-of-a-test-0123456789")


@pytest.fixture(scope="module")
def open_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(Shown(tmp_path_factory.mktemp("open")), "0.0.0.0", TOKEN)
    yield site
    site.close()


@pytest.mark.parametrize("path", [*PATHS[:-1], "/events", "/nix"])
def test_without_the_token_nothing_is_told(open_site: Site, path: str) -> None:
    answer = open_site.ask(path)
    assert (answer.code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert b"web.json" in answer.body


def test_a_probe_needs_no_token(open_site: Site) -> None:
    assert open_site.ask("/healthz").body == b"ok\n"


@pytest.mark.parametrize(
    "headers",
    [{"Authorization": "Bearer x"}, {"Authorization": TOKEN.text}, {"Cookie": "everstep-1=x"}, {"Cookie": "é="}],
)
def test_a_wrong_token_is_none(open_site: Site, headers: dict[str, str]) -> None:
    assert open_site.ask("/api/status", **headers).code == 401
    assert open_site.ask("/?token=x").code == 401


def test_a_bearer_is_let_in(open_site: Site) -> None:
    answer = open_site.ask("/metrics", Authorization=f"Bearer {TOKEN.text}", Host="anything.example")
    assert answer.code == 200


def test_the_link_is_changed_for_a_cookie_that_scripts_cannot_read(open_site: Site) -> None:
    answer = open_site.ask(f"/?token={TOKEN.text}")
    assert (answer.code, answer.headers["Location"]) == (303, "/")
    cookie, *rules = [part.strip() for part in answer.headers["Set-Cookie"].split(";")]
    assert {"httponly", "samesite=lax"} <= {rule.lower() for rule in rules}
    assert cookie.startswith(f"everstep-{open_site.port}=")
    assert open_site.ask("/api/status", Cookie=cookie).code == 200


def test_the_link_has_the_token_and_the_log_has_not(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.publish_page(Page.at("0.0.0.0", 8000, TOKEN))
    page = run.page()
    assert page is not None
    assert page.url == f"http://{socket.gethostname()}:8000/?token={TOKEN.text}"
    assert TOKEN.text not in page.sentence
    assert (tmp_path / "web.json").stat().st_mode & 0o077 == 0
    assert Page.at("::1", 8000, None).url == "http://[::1]:8000/"


# ── strangers ────────────────────────────────────────────────────────────────────────────────────────────


def test_more_listeners_than_there_may_be_are_told_to_come_later(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MAX_LISTENERS", 2)
    events = [site.listen(), site.listen()]
    for listener in events:
        listener.next("status")
    answer = site.ask("/events")
    assert (answer.code, answer.headers["Retry-After"]) == (503, "5")
    events[0].close()
    while (again := site.listen()).response.status != 200:  # it is noticed when the connection's end arrives
        again.close()
    events[1].close()
    again.close()


def test_more_connections_than_there_may_be_are_closed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)
    crowd = [socket.create_connection(("127.0.0.1", site.port), 10) for _ in range(3)]
    assert _closed(crowd[2])
    for sock in crowd:
        sock.close()


def test_a_connection_that_asks_for_nothing_is_closed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.01)
    with socket.create_connection(("127.0.0.1", site.port), 10) as sock:
        assert _closed(sock)


def test_a_listener_that_takes_nothing_is_left(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "SLOW_S", 0.05)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", site.port))
        sock.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        listeners = site.shown.feed._listeners
        assert len(listeners) == 1
        while listeners:  # what cannot be sent fills the buffers, and then it is over
            for listener in list(listeners):
                site.soon(lambda listener=listener: listener.tell(b": " + b"x" * 1_000_000 + b"\n\n"))  # type: ignore[misc]
            site.ask("/healthz")


@pytest.mark.parametrize("data", [b"\xff" * 5000, b"GET / HTTP/9\r\n\r\n", b"GET " + b"x" * 100_000, b"\r\n" * 9])
def test_what_is_no_http_ends_its_own_connection_only(site: Site, data: bytes) -> None:
    events: Events = site.listen()
    events.next("status")
    with socket.create_connection(("127.0.0.1", site.port), 10) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        assert _closed(sock)
    assert site.ask("/healthz").code == 200
    site.shown.job.step(3, 3.0)
    assert events.next("change")["progress"]["steps"] == 3
    events.close()


def _closed(sock: socket.socket) -> bool:
    """Read to the end."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        pass
    return True
