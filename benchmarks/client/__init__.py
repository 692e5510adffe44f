"""A raw client of the Tinker wire, in a process of its own and lean enough not to be what is measured."""
