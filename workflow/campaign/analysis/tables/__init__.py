"""Tables built from records, which are the source of all results that are shown."""
