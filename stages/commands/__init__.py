"""What each subcommand of `claimcheck` does; `stages/cli.py` parses the words and prints the answers."""
