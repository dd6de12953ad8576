"""Program of a service run, which starts the server, waits until it is ready, runs the client, and ends the server.

`python -m campaign.workloads.service_run SPECIFICATION` writes `service-result.json` into the run's directory
(`specification.ServiceRunResult`). With `launch: per_rank`, the launcher starts the program once per rank. With
`per_host`, the program starts itself on the other hosts. Processes other than rank 0 only keep their part of the
server running until rank 0 signals the end of the run.
"""
