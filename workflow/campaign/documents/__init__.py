"""What the program writes and reads again (records, plans). Models of what people write are in config."""
