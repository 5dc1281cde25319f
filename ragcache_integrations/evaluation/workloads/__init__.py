"""Streams of questions, and rephrasings of them."""
