"""What all adapters of real control planes have in common: HTTP, credentials, tags, and `ControlledFabric`, the way to use them.

A vendor adapter is a `ControlPlane` (see `protocol`): what the control plane shows, and the requests that attach and detach.
Everything that makes this safe - claims, tags, reading back, the hosts' view, never touching what is not ours - is in
`ControlledFabric`.
"""
