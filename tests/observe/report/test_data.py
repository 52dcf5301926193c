"""The JSON of a failure timeline has each block of its picture, at the same times."""

from __future__ import annotations

from tests.observe.report.conftest import parsed
from tests.observe.report.invented import invented

from everstep.observe.report.data import plain
from everstep.observe.report.failure import failure_timeline
from everstep.observe.report.scene import set_scene


def test_it_has_the_lanes_and_times_of_the_picture() -> None:
    run = invented()
    [recovery] = run.recoveries
    told = plain(set_scene(run, recovery))
    drawing = parsed(failure_timeline(run, recovery))
    assert [lane["worker"] for lane in told["lanes"]] == [
        int(group.get("data-worker", "")) for group in drawing.find("g") if group.get("class") == "device"
    ]
    parts = {lane["worker"]: lane["part"] for lane in told["lanes"]}
    assert (parts[0], parts[2], parts[4]) == ("donor", "failed", "replacement")
    for lane in told["lanes"]:
        blocks = {float(block.get("data-start", "")) for block in drawing.device(lane["worker"]).having("phase")}
        starts = {round(max(span["start_s"], told["start_s"]) - told["failed_s"], 6) for span in lane["spans"]}
        assert blocks <= starts
        assert blocks
