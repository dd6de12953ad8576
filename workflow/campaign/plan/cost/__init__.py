"""What runs and leases cost in time: measured costs, and forecasts learned from them."""
