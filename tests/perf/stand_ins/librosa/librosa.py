"""Empty: the peer imports librosa to read recordings, which no measurement gives it."""
