"""What the tables of a campaign mean: comparisons with other campaigns, published claims, and recommendations."""
