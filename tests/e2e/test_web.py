"""The live page of real jobs: where it is, what it tells, and that the job neither waits for it nor ends by it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.controller.web.conftest import Events
from tests.e2e.conftest import SCRIPTS, Run, eventually

Start = Callable[..., Run]
STEPS = str(SCRIPTS / "steps.py")
PROTECTED = (str(SCRIPTS / "protected.py"), "100000", "0.02")
PLAIN = ("--nproc", "2", "--no-zygote", "--standby", "0")
LONG = (STEPS, "100000", "0.02")
PHASES = {("everstep_phase_seconds_count", phase) for phase in ("forward", "backward", "barrier", "optimizer", "idle")}
TIMEOUT_S = 20.0
"""Against hangs only."""


def page(run: Run) -> dict[str, Any]:
    path = run.dir / "web.json"

    def there() -> bool:
        assert run.process.poll() is None, run.text()
        return path.exists()

    eventually(there, "the page is there")
    return dict(json.loads(path.read_text()))


def get(port: int, path: str, token: str = "", host: str = "127.0.0.1") -> bytes:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urlopen(Request(f"http://{host}:{port}{path}", headers=headers), timeout=TIMEOUT_S) as answer:
        return bytes(answer.read())


def scrape(port: int) -> dict[tuple[str, ...], float]:
    """Samples by name and labels, by Prometheus's own parser."""
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(get(port, "/metrics").decode())
        for sample in family.samples
    }


def code(port: int, path: str) -> int:
    try:
        get(port, path)
    except HTTPError as error:
        return error.code
    return 200


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def interrupt(run: Run) -> None:
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130


def test_a_run_says_where_its_page_is_and_takes_it_along(start: Start) -> None:
    run = start(*PLAIN, *LONG)
    port = page(run)["port"]
    run.training()
    link = f"everstep: live page http://127.0.0.1:{port}/\n"
    eventually(lambda: link in run.text(), "the link is printed")
    command = [sys.executable, "-m", "everstep.cli", "status", str(run.dir), "--json"]
    printed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    shown = json.loads(get(port, "/api/status"))
    assert shown.keys() == printed.keys()
    assert [(w["rank"], w["pid"]) for w in shown["workers"]] == [(w["rank"], w["pid"]) for w in printed["workers"]]
    events = Events(port)
    events.next("status")
    interrupt(run)
    assert events.next("end")["reason"] == "interrupted"
    events.close()
    assert not listens(port)
    assert run.text().count("live page") == 1
    run.leaves_nothing()


def test_a_kill_is_told_to_who_listens(start: Start) -> None:
    run = start(*PLAIN, *LONG)
    events = Events(page(run)["port"])
    run.training()
    status = events.next("status")
    victim = run.training()["workers"][1]["pid"]
    os.kill(victim, signal.SIGKILL)
    while "failures" not in (change := events.next("change")):
        pass
    assert "killed by SIGKILL" in change["failures"][-1]["text"]
    assert change["generation"] == status["generation"] + 1
    events.close()


def test_a_recovery_is_told_with_its_record_and_counted(start: Start) -> None:
    run = start("--nproc", "2", *PROTECTED)
    port = page(run)["port"]
    events = Events(port)
    victim = run.training(3)["workers"][1]["pid"]
    os.kill(victim, signal.SIGKILL)
    record = events.next("recovery")
    assert (record["cause"], record["rank"], record["outcome"]) == ("EXIT", 1, "recovered")
    assert "killed by SIGKILL" in record["sentence"]
    assert json.loads(get(port, "/api/recoveries"))["recoveries"] == [record]
    samples = eventually(lambda: found if (found := scrape(port)).keys() >= PHASES else None, "all phases are counted")
    assert samples["everstep_recoveries_total", "EXIT", "recovered", record["decision"]] == 1
    assert samples["everstep_failures_total", "EXIT"] == 1
    assert samples["everstep_replicas_min",] == 2
    assert 0 < samples["everstep_goodput_ratio",] < 1
    assert samples["everstep_steps_total",] >= 3
    assert samples["everstep_phase_seconds_sum", "forward"] > 0.02 * samples["everstep_phase_seconds_count", "forward"]
    events.close()


def test_a_controller_that_is_started_again_has_its_page_where_it_was(start: Start) -> None:
    run = start(*PLAIN, *LONG)
    port = page(run)["port"]
    run.training()
    before = json.loads(get(port, "/api/status"))["progress"]
    old = run.controller_pid()
    os.kill(old, signal.SIGKILL)
    eventually(lambda: run.controller_pid() != old and listens(port), "the page is back")
    run.when(lambda status: status["progress"]["steps"] > before["steps"], "it knows how far the job is")
    assert json.loads(get(port, "/api/status"))["progress"]["elapsed_s"] > before["elapsed_s"]
    assert page(run)["port"] == port


def test_where_others_can_reach_it_a_token_is_asked_for(start: Start) -> None:
    run = start(*PLAIN, "--web", "0.0.0.0:0", *LONG)
    found = page(run)
    token = (run.dir / "web-token").read_text().strip()
    assert found["url"].endswith(f"/?token={token}")
    assert (run.dir / "web-token").stat().st_mode & 0o077 == 0
    assert [code(found["port"], path) for path in ("/", "/api/status", "/metrics", "/events")] == [401] * 4
    assert json.loads(get(found["port"], "/api/status", token))["generation"] == 1
    eventually(lambda: "live page" in run.text(), "the link is printed")
    assert token not in run.text()
    assert all(token not in " ".join(process.cmdline()) for process in run.family())
    assert token != (run.dir / "token").read_text().strip(), "who may look may not steer"


def test_without_a_page_a_job_runs_as_well(start: Start) -> None:
    run = start(*PLAIN, "--web", "off", STEPS, "5", "0.02")
    assert run.wait() == 0
    assert not (run.dir / "web.json").exists()
    assert "live page" not in run.text()


def test_without_the_extra_one_line_says_how_to_get_it(
    start: Start, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path_factory.mktemp("hidden")
    (hidden / "uvicorn.py").write_text("raise ModuleNotFoundError('no uvicorn', name='uvicorn')")
    monkeypatch.setenv("PYTHONPATH", str(hidden))
    run = start(*PLAIN, *LONG)
    eventually(lambda: "no live page" in run.text(), "it is said")
    run.training()
    interrupt(run)
    assert "[controller] no live page: uvicorn is not installed; pip install 'everstep[web]' brings it" in run.text()
    assert "Traceback" not in run.text()


def test_a_port_that_is_taken_is_told_before_the_start(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = start(*PLAIN, "--web", str(port), *LONG)
        assert run.wait() == 2
    assert f"cannot listen on 127.0.0.1:{port} (Address already in use): give --web another address" in run.text()
