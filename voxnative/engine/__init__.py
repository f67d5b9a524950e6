"""The only package that touches vLLM: paged model, runner hooks, output path."""
