"""Other engines on the same texts, seeds and machine."""
