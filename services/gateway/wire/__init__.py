"""The Tinker wire: bodies in, bodies out. Nothing outside this package knows its shapes."""
