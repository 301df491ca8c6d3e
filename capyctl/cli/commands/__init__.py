"""What each command does. A file is loaded only when one of its commands is called."""
