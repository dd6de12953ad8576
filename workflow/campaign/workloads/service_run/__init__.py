"""Program of a service run: it starts the server, waits until it is ready, runs the client, and ends the server.

`python -m campaign.workloads.service_run SPECIFICATION` leaves `service-result.json` in the run's directory
(`specification.ServiceRunResult`). With `launch: per_rank` the launcher starts it once per rank, and with
`per_host` it starts itself on the other hosts. Processes other than rank 0 only keep their part of the server
running until rank 0 signals the end of the run.
"""
