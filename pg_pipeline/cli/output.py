"""What every command shares: where it prints, and what its exit code means."""

import sys

from rich.console import Console

# Colours go by themselves where the output is not a terminal, or where NO_COLOR is set; a file or a pipe gets
# whole lines.
console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 240)

EXIT_ERROR = 1
EXIT_PROBLEMS = 3  # the command worked and found something that needs a person (2 is wrong usage)
