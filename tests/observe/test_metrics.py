"""What Prometheus reads, with its own parser: every name that is documented, with the values of the job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.observe.test_ledger import checkpoint
from tests.observe.test_progress import WatchedJob

from everstep.controller.outlook import Outlook
from everstep.core.events import Committed
from everstep.observe.ledger import Ledger
from everstep.observe.metrics import Metrics
from everstep.observe.phases import JobPhases, PhaseTimes
from everstep.observe.records import encode
from everstep.observe.tally import STEP_BOUNDS_S, Tally
from everstep.types import Mesh

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


class Scraped:
    """One scrape, parsed."""

    def __init__(self, text: bytes) -> None:
        self.families: dict[str, Metric] = {
            family.name: family for family in text_string_to_metric_families(text.decode())
        }

    def value(self, sample: str, **labels: str) -> float | None:
        return self.all(sample).get(frozenset(labels.items()))

    def all(self, name: str) -> Mapping[frozenset[tuple[str, str]], float]:
        return {
            frozenset(sample.labels.items()): sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name
        }


class Scraper:
    def __init__(self, job: WatchedJob, root: Path) -> None:
        self._root = root
        ledger = Ledger(root / "recoveries.jsonl", root / "checkpoints.jsonl")
        self.phases = JobPhases()
        self._job = job
        outlook = Outlook("train-1", job.machine, job.progress, ledger, dict, self.phases, lambda: job.now)
        self._metrics = Metrics(outlook)

    def scrape(self) -> Scraped:
        (self._root / "recoveries.jsonl").write_bytes(b"".join(map(encode, self._job.records)))
        return Scraped(self._metrics.text())


@pytest.fixture
def job() -> WatchedJob:
    return WatchedJob(ranks=4, standbys=1, mesh=Mesh(2, 2)).begun()


@pytest.fixture
def scraper(job: WatchedJob, tmp_path: Path) -> Scraper:
    return Scraper(job, tmp_path)


def test_where_the_job_is(job: WatchedJob, scraper: Scraper) -> None:
    job.step(7, 7.0)
    seen = scraper.scrape()
    assert seen.value("everstep_state", state="RUNNING") == 1
    assert sum(seen.all("everstep_state").values()) == 1
    assert seen.value("everstep_generation") == 1
    assert seen.value("everstep_step") == 7
    assert seen.value("everstep_ranks") == seen.value("everstep_ranks_filled") == 4
    assert seen.value("everstep_standbys") == seen.value("everstep_standbys_wanted") == 1
    [labels] = seen.all("everstep_job_info")
    assert dict(labels)["name"] == "train-1"


def test_the_shard_with_the_fewest_copies_is_told(job: WatchedJob, scraper: Scraper) -> None:
    assert scraper.scrape().value("everstep_replicas_min") == 2
    job.crash(1)
    seen = scraper.scrape()
    assert seen.value("everstep_shards") == 2
    assert seen.value("everstep_replicas_min") == 1
    assert seen.value("everstep_state", state="STOPPING") == 1


def test_before_anything_is_protected_there_are_no_replicas(tmp_path: Path) -> None:
    seen = Scraper(WatchedJob(ranks=2), tmp_path).scrape()
    assert seen.value("everstep_replicas_min") is None
    assert seen.value("everstep_step") == 0


def test_a_recovery_is_counted_with_its_stages(job: WatchedJob, scraper: Scraper) -> None:
    job.step(7, 7.0)
    job.crash(1)
    assert scraper.scrape().value("everstep_failures_total", cause="EXIT") == 1
    job.pace[Committed] = 0.3
    job.recovered()
    seen = scraper.scrape()
    labels = {"cause": "EXIT", "decision": "redo", "outcome": "recovered"}
    assert seen.value("everstep_recoveries_total", **labels) == 1
    assert seen.value("everstep_recovery_seconds_count") == 1
    assert seen.value("everstep_recovery_seconds_sum") == pytest.approx(0.3)
    assert seen.value("everstep_recovery_seconds_bucket", le="0.25") == 0
    assert seen.value("everstep_recovery_seconds_bucket", le="0.5") == 1
    assert seen.value("everstep_recovery_stage_seconds_sum", stage="first_step") == pytest.approx(0.3)
    assert seen.value("everstep_recovery_stage_seconds_count", stage="stop") == 1
    assert seen.value("everstep_steps_redone_total") == 1


def test_goodput_is_productive_time_over_training_time(job: WatchedJob, scraper: Scraper) -> None:
    job.step(7, 15.0)
    job.now += 5.0
    seen = scraper.scrape()
    assert seen.value("everstep_productive_seconds_total") == pytest.approx(15.0)
    assert seen.value("everstep_training_seconds_total") == pytest.approx(20.0)
    assert seen.value("everstep_elapsed_seconds_total") == pytest.approx(25.0)
    assert seen.value("everstep_goodput_ratio") == pytest.approx(0.75)
    assert seen.value("everstep_steps_total") == 7


def test_the_age_of_a_checkpoint_is_that_of_its_state(job: WatchedJob, scraper: Scraper, tmp_path: Path) -> None:
    assert scraper.scrape().value("everstep_checkpoint_age_seconds") is None
    (tmp_path / "checkpoints.jsonl").write_bytes(checkpoint(2))
    job.now = 1012.0
    seen = scraper.scrape()
    assert seen.value("everstep_checkpoint_last_committed_step") == 2
    assert seen.value("everstep_checkpoint_age_seconds") == pytest.approx(10.0)
    assert seen.value("everstep_checkpoints_total", fate="committed") == 1
    assert seen.value("everstep_checkpoint_k1_seconds_count") == 1


def test_phases_are_histograms(scraper: Scraper) -> None:
    for node in ("n0", "n1"):
        times = PhaseTimes({"forward": Tally(STEP_BOUNDS_S), "step": Tally(STEP_BOUNDS_S)})
        times.tallies["forward"].add(0.02 if node == "n0" else 0.03)
        times.tallies["step"].add(400.0)
        scraper.phases.take(node, 1, times.counts())
    seen = scraper.scrape()
    assert seen.value("everstep_phase_seconds_bucket", phase="forward", le="0.025") == 1
    assert seen.value("everstep_phase_seconds_bucket", phase="forward", le="+Inf") == 2
    assert seen.value("everstep_phase_seconds_sum", phase="forward") == pytest.approx(0.05)
    assert seen.value("everstep_step_seconds_bucket", le="300.0") == 0
    assert seen.value("everstep_step_seconds_count") == 2


def test_two_jobs_of_one_process_know_nothing_of_each_other(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = (WatchedJob(ranks=ranks).begun() for ranks in (2, 3))
    one, other = Scraper(first, tmp_path / "a"), Scraper(second, tmp_path / "b")
    assert (one.scrape().value("everstep_ranks"), other.scrape().value("everstep_ranks")) == (2, 3)


def test_each_metric_is_documented_and_nothing_else(job: WatchedJob, scraper: Scraper, tmp_path: Path) -> None:
    (tmp_path / "checkpoints.jsonl").write_bytes(checkpoint(2))
    families = scraper.scrape().families.items()
    seen = {name + ("_total" if family.type == "counter" else "") for name, family in families}
    documented = set(re.findall(r"^\| `(everstep_\w+)", PAGE.read_text(), re.MULTILINE))
    assert seen == documented
