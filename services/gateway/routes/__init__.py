"""One module per area of the protocol; each exports `routes(gateway)`."""
