"""Speed and quality by one command: ``voxnative bench``; `definitions.py` says what is measured."""
