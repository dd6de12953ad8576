"""Tables made from records: the source of everything that is shown."""
