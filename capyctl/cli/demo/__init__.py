"""What `capyctl demo` is made of: a stage with a role on it, a screen, watchers, and the play."""
