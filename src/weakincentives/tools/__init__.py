"""Hosted tools, one package per kind: what they are configured with and what they give, whoever runs them."""
