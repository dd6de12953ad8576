"""Common parts of all adapters of real control planes: HTTP, credentials, tags, and `ControlledFabric`, which uses them.

A vendor adapter is a `ControlPlane` (see `protocol`): it reads the state of the control plane, and sends the requests that
attach and detach devices. `ControlledFabric` makes this safe: it keeps claims and tags, reads results back, checks the view
of the hosts, and never touches devices of other users.
"""
