"""Limits on clients before their key is checked: sizes, timeouts, framing."""
