"""The translation experiment."""
