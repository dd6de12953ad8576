"""What runs and leases cost in time: measured costs, forecasts learned from them, and what a budget pays for."""
