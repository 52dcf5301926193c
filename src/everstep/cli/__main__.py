"""`python -m everstep.cli` is the `everstep` command, for where scripts are not on the path."""

from everstep.cli import main

if __name__ == "__main__":
    main(prog_name="everstep")
