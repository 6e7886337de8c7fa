"""The subcommands of `claimcheck`; `stages/cli.py` parses arguments and prints answers."""
