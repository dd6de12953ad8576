"""Emulated control planes for learning and for tests.

They are real HTTP servers with the composition semantics that the adapters expect. Each emulator is stricter than real services,
and produces faults on request (`faults`). Emulators import nothing from the adapters.

The module of an emulator defines `open_emulator(rack, **options) -> Emulator` and `COMPOSES`: method and path (a shell pattern)
of the request that composes. A module may also define `address(server)`, the entries of a system file that locate the emulator,
and `DEVICES`, `OPTIONS` and `NOTE`: the arguments of `campaign fabric emulate`, and the notes in its system file. The registry
entry of the fabric kind names the module (`campaign.fabrics.registry`).
"""
