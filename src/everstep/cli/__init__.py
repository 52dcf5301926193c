"""The `everstep` command: reads arguments, hands over, says in one line what is wrong. It holds no logic of a job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

import everstep
from everstep.cli import chaos, checkpoint, cluster, demo, doctor, explain, plan, replay, report, run, status, trace
from everstep.errors import ConfigError, EverstepError, ResourceError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class _OneLineErrors(click.Group):
    """Click shows an error in four lines, and ours as a traceback."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, **extra)
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx else "everstep"
            code = _complain(f"{error.format_message().rstrip('.')} (see {command} --help)", error.exit_code)
        except click.ClickException as error:
            code = _complain(error.format_message(), error.exit_code)
        except (ConfigError, ResourceError) as error:
            code = _complain(str(error), EXIT_USAGE)
        except EverstepError as error:
            code = _complain(str(error), EXIT_FAILED)
        except (KeyboardInterrupt, click.Abort):
            code = EXIT_INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


def _complain(text: str, code: int) -> int:
    click.echo(f"everstep: {' '.join(text.split())}", err=True)
    return code


@click.group("everstep", cls=_OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(everstep.__version__, prog_name="everstep")
def main() -> None:
    """Keep synchronous PyTorch training going through failures.

    \b
    everstep run --nproc 4 --standby 1 train.py --lr 3e-4
    """


_COMMANDS = (
    *(run.run, status.status, explain.explain, report.report, trace.trace, plan.plan, checkpoint.checkpoint),
    *(chaos.chaos, replay.replay, cluster.controller, cluster.agent, doctor.doctor, demo.demo),
)
for _command in _COMMANDS:
    main.add_command(_command)
