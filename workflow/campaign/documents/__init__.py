"""The typed documents that the stages hand on: cells, records, plans, and what they are made of."""
