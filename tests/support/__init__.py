"""Helpers of the server tests."""
