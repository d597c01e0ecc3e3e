"""One file a command; each reads as the story of what that command does."""
