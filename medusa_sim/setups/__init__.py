"""Which set-up: every allowed one priced, those that nothing beats, and the one for a stated target."""
