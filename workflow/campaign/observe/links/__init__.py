"""The links stage: what links of a composition give, measured between its devices, modelled, and held against what is expected."""
