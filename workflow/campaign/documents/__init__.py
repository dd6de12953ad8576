"""What the program writes and reads again (records, plans, rounds of a question). Models of what people write are in config."""
