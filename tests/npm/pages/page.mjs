// A page that begins with the history of its thread and sends messages with a published client.
// `?client=` is ai or ag-ui, `?thread=` the thread, `?api=` the endpoint. Tests call `window.page`, which shows everything in
// `#log`: a call that waits for a decision with its text.
const asked = new URLSearchParams(location.search);
const thread = asked.get("thread");

async function vercel() {
  const { AbstractChat, DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses, lastAssistantMessageIsCompleteWithToolCalls } = await import("ai");
  const api = asked.get("api") ?? "/vercel";
  const messages = await (await fetch(`${api}?id=${thread}`)).json();
  // What the hooks of the UI packages are: a state that draws itself.
  const state = {
    status: "ready", error: undefined, messages,
    pushMessage(message) { this.messages = [...this.messages, message]; draw(); },
    popMessage() { this.messages = this.messages.slice(0, -1); draw(); },
    replaceMessage(index, message) { this.messages = this.messages.with(index, message); draw(); },
    snapshot: (value) => structuredClone(value),
  };
  const errors = [];
  const transport = new DefaultChatTransport({ api });
  class Chat extends AbstractChat {}
  const sendAutomaticallyWhen = (all) =>
    lastAssistantMessageIsCompleteWithApprovalResponses(all) || lastAssistantMessageIsCompleteWithToolCalls(all);
  const chat = new Chat({ id: thread, transport, state, sendAutomaticallyWhen, onError: (error) => errors.push(error.message) });
  const calls = () => state.messages.flatMap(({ parts }) => parts).filter((part) => part.type === "dynamic-tool");

  function draw() {
    document.querySelector("#log").replaceChildren(...state.messages.flatMap(({ role, parts }) => parts.map((part) => {
      if (part.type === "text") return line(`${role}: ${part.text}`);
      if (part.type === "file") return image(part.url);
      if (part.state === "approval-requested") return line(`${part.state} ${part.approval.descriptor.text}`);
      if (part.type === "dynamic-tool") return line(`${part.toolName} ${JSON.stringify(part.input)} ${part.state}`);
      if (part.type.startsWith("data-")) return line(`${part.type} ${JSON.stringify(part.data)}`);
      return "";
    })));
  }
  draw();
  return {
    errors,
    messages: () => plain(state.messages),
    send: (parts) => chat.sendMessage({ parts }),
    edit: (number, text) => chat.sendMessage({ text, messageId: state.messages.filter((m) => m.role === "user")[number].id }),
    regenerate: () => chat.regenerate(),
    decide: (approved, reason) => {
      const waiting = calls().find((part) => part.state === "approval-requested");
      return chat.addToolApprovalResponse({ id: waiting.approval.id, approved, reason });
    },
    answer: (output) => {
      const { toolName: tool, toolCallId } = calls().find((part) => part.state === "input-available");
      return chat.addToolOutput({ tool, toolCallId, output });
    },
    stop: () => chat.stop(),
  };
}

async function agUi() {
  const { HttpAgent, buildResumeArray } = await import("@ag-ui/client");
  const url = asked.get("api") ?? "/ag-ui";
  const { messages, state, interrupts } = await (await fetch(`${url}?threadId=${thread}`)).json();
  const agent = new HttpAgent({ url, threadId: thread, initialMessages: messages, initialState: state });
  agent.pendingInterrupts = interrupts;
  const errors = [];
  const progress = [];

  function draw() {
    document.querySelector("#log").replaceChildren(...agent.messages.flatMap((message) => [
      ...(typeof message.content === "string" ? [{ type: "text", text: message.content }] : message.content ?? []).map((part) =>
        part.type === "image" ? image(`data:${part.source.mimeType};base64,${part.source.value}`) : line(`${message.role}: ${part.text}`)),
      ...(message.toolCalls ?? []).map((call) => line(`${call.function.name} ${call.function.arguments}`)),
    ]), ...agent.pendingInterrupts.map(({ message }) => line(`approval-requested ${message}`)),
    ...progress.map((value) => line(`progress ${JSON.stringify(value)}`)));
  }
  async function run(tools, resume) {
    try {
      await agent.runAgent({ tools, resume }, {
        onRunErrorEvent: ({ event }) => { errors.push(event.message); },
        onCustomEvent: ({ event }) => { progress.push(event.value); draw(); },
        onMessagesChanged: draw,
      });
    } catch (error) {
      errors.push(error.message);
    }
    draw();
  }
  draw();
  return {
    errors,
    messages: () => plain(agent.messages),
    state: () => agent.state,
    send: (content, tools = []) => {
      agent.messages.push({ id: crypto.randomUUID(), role: "user", content });
      return run(tools);
    },
    edit: (number, text) => {
      const at = agent.messages.indexOf(agent.messages.filter((m) => m.role === "user")[number]);
      agent.messages.splice(at, agent.messages.length, { ...agent.messages[at], content: text });
      return run([]);
    },
    say_instead: (content) => {
      agent.messages.push({ id: crypto.randomUUID(), role: "user", content });
      return window.page.resume({ status: "cancelled" });
    },
    resume: (response) => run([], buildResumeArray(agent.pendingInterrupts, Object.fromEntries(
      agent.pendingInterrupts.map(({ id }) => [id, response])))),
    decide: (approved, reason) => window.page.resume({ status: "resolved", payload: { approved, reason } }),
    edit_arguments: (editedArgs) => window.page.resume({ status: "resolved", payload: { approved: true, editedArgs } }),
    answer: (content, tools) => {
      const answered = new Set(agent.messages.map((message) => message.toolCallId));
      const call = agent.messages.flatMap((message) => message.toolCalls ?? []).find(({ id }) => !answered.has(id));
      agent.messages.push({ id: crypto.randomUUID(), role: "tool", toolCallId: call.id, content });
      return run(tools);
    },
    stop: () => agent.abortRun(),
  };
}

function plain(messages) {
  return JSON.parse(JSON.stringify(messages.map(({ id, ...rest }) => rest)));
}

function line(text) {
  const found = document.createElement("p");
  found.textContent = text;
  return found;
}

function image(src) {
  const found = document.createElement("img");
  found.src = src;
  return found;
}

window.page = asked.get("client") === "ai" ? await vercel() : await agUi();
document.body.dataset.ready = "";
