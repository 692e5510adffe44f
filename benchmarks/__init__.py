"""Every performance figure of the documentation, re-run by `make bench` (see docs/performance.md)."""
