"""One adapter for each model family: a request body -> what the model takes."""
