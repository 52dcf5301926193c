"""`python -m everstep.controller RUN_DIR`: the controller of a run that `everstep run` has laid out."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from pathlib import Path

from everstep.controller.host import host
from everstep.controller.job import RunDir
from everstep.errors import ConfigError


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="[controller] %(message)s", stream=sys.stderr)
    if len(sys.argv) != 2:
        sys.exit("usage: python -m everstep.controller RUN_DIR")
    gc.freeze()  # what was imported stays: to look through it takes longer than a step of a recovery
    try:
        code = asyncio.run(host(RunDir.open(Path(sys.argv[1]))))
    except ConfigError as error:
        print(f"everstep controller: {error}", file=sys.stderr)  # noqa: T201
        code = 2
    sys.exit(code)


if __name__ == "__main__":
    main()
