"""The `everstep` command: reads arguments and hands over. It holds no logic of its own."""

import click

import everstep


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(everstep.__version__, prog_name="everstep")
def main() -> None:
    """Keep synchronous PyTorch training going through failures."""
