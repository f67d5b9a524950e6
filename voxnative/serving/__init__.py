"""The HTTP server: routes for vLLM's API server, and what stands behind them."""
