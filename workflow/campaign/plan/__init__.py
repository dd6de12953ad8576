"""From a campaign to its plan: cells, their order, what they cost, and which of them need no run."""
