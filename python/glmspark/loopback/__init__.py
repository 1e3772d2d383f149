"""The tiny model of the loopback kit, made on the spot: random weights, no download."""
