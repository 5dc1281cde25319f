"""The prompt linter: its rules, and the files and logs that it reads."""
