"""One lease measured: composed, driven run by run to its records, and released."""
