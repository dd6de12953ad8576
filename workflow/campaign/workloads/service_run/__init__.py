"""The program of a service's run: it starts the server, waits until it is ready, applies the load, and ends the server.

`python -m campaign.workloads.service_run SPECIFICATION` leaves `result.json` in the run's directory (`specification.Result`). With
`launch: per_rank` the launcher starts it once a rank, and with `per_host` it starts itself on the other hosts; those that are not
rank 0 only keep their part of the server running until rank 0 says that the run is over.
"""
