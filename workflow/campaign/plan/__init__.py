"""The plan of a campaign: its cells, their order, what they cost, and which of them need no run."""
