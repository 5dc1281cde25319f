"""Prompt Markup Language: schemas, prompts, compilation."""
