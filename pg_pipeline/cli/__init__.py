"""The command line: what a person types. Wires the rooms together and decides nothing itself."""
