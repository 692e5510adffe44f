"""Content rules: each function raises InvalidInput with a text that becomes the command's failure."""
