"""Streaming encoders, one for each response format."""
