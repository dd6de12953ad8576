"""The `campaign` command, one module for each group of commands."""
