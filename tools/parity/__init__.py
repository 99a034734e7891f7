"""Parity with transformers: the reference, our side, the cases, and the tables of docs/parity.md.

`tools.parity.reference` needs torch; nothing that `pyvlm` imports does.
"""
