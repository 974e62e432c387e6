"""The names of OpenTelemetry's conventions for generative AI, as of semantic-conventions 0.66b2, and our own.

They are listed here because the package marks its constants as deprecated: the conventions are moving to a
repository of their own.
"""

from __future__ import annotations

CAPTURE_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
CAPTURING_VALUES = frozenset({"true", "1", "span_only", "span_and_event"})

CHAT = "chat"
EXECUTE_TOOL = "execute_tool"
INVOKE_AGENT = "invoke_agent"

AGENT_NAME = "gen_ai.agent.name"
CONVERSATION_ID = "gen_ai.conversation.id"
ERROR_TYPE = "error.type"
INPUT_MESSAGES = "gen_ai.input.messages"
OPERATION_NAME = "gen_ai.operation.name"
OUTPUT_MESSAGES = "gen_ai.output.messages"
PROMPT_NAME = "gen_ai.prompt.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
TOKEN_TYPE = "gen_ai.token.type"
TOOL_CALL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_CALL_RESULT = "gen_ai.tool.call.result"
TOOL_DEFINITIONS = "gen_ai.tool.definitions"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
USAGE_CACHE_READ_INPUT_TOKENS = "gen_ai.usage.cache_read.input_tokens"
USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"

OPERATION_DURATION = "gen_ai.client.operation.duration"
TOKEN_USAGE = "gen_ai.client.token.usage"
TOOL_DURATION = "gen_ai.execute_tool.duration"
TOKEN_BUCKETS = tuple(4**power for power in range(14))
SECOND_BUCKETS = tuple(0.01 * 2**power for power in range(14))

TOOLS_INJECTED = "wink.tools.injected"
DISCLOSURE_DYNAMIC = "wink.disclosure.dynamic"
DISCLOSURE_RESTARTS = "wink.disclosure.restarts"
RUN_ID = "wink.run.id"
SECTION_KEY = "wink.section.key"
ROUTE = "wink.route"
SECTIONS = "wink.sections"
REASON = "wink.reason"
ROLLED_BACK = "wink.tool.rolled_back"

# Adapters whose provider has a well-known name; the others go by the name of the adapter.
PROVIDERS = {"claude_agent_sdk": "anthropic"}
FINISH_REASONS = {"end": "stop"}
