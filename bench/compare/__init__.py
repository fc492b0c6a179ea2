"""Two runs, or two storages of one, side by side: what differs around them, then case by case."""
