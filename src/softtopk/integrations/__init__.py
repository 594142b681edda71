"""Top-k attention inside other libraries, one module each, with an extra of the same name."""
