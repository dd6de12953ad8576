"""Choice of hosts and devices for a configuration, from the banks of a system."""
