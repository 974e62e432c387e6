"""What the codecs of hosted tools stand on: settings they honour, items they read, and who can what."""
