"""The command line: flags, and what each subcommand does."""
