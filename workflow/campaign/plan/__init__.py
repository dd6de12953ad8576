"""Plan of a campaign: its cells, their order, their cost, and the cells that need no run."""
