"""cli: one file per command. Data on stdout, `--json` everywhere, torch never imported before it is needed."""
