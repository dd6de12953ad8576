"""Emulated control planes: real HTTP servers with the composition semantics of the adapters, to learn on and to test against.

Each is strict where real peers are lax, and commits faults on request (`faults`). They know nothing of the adapters.
The module of an emulator has `open_emulator(rack, **options) -> Emulator` and `COMPOSES`: method and path (a shell pattern) of the
request that composes. Where it is not as the others, it also has `address(server)`: what a system file says of where it is, and
`DEVICES`, `OPTIONS` and `NOTE`: what `campaign fabric emulate` opens it with, and notes in its system file. The row of its kind of
fabric names it (`campaign.fabrics.registry`).
"""
