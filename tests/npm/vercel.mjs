// Talks to a server as `useChat` does and prints the assistant messages that come of it.
// Arguments: the package (ai or ai-6), the address, the thread, then a message each; a message is text, or JSON parts.
// `HEADERS` has more headers of the requests, as JSON. A message that begins with "stop:" is aborted once some text has come;
// "approve:" and "deny:" with a reason decide about the calls that wait.
const [name, api, id, ...said] = process.argv.slice(2);
const { DefaultChatTransport, readUIMessageStream } = await import(name);
const transport = new DefaultChatTransport({ api, headers: JSON.parse(process.env.HEADERS ?? "{}") });
const messages = [];
const printed = [];
for (const text of said) {
  const [, verdict, reason] = text.match(/^(approve|deny):(.*)$/) ?? [];
  const parts = text.startsWith("[") ? JSON.parse(text) : [{ type: "text", text }];
  if (verdict) {
    for (const part of messages.at(-1).parts.filter((part) => part.state === "approval-requested")) {
      part.state = "approval-responded";
      part.approval = { ...part.approval, approved: verdict === "approve", reason };
    }
  } else messages.push({ id: `m${messages.length}`, role: "user", parts });
  const abort = new AbortController();
  const errors = [];
  let message = verdict ? messages.pop() : null;
  const goesOn = message ? [structuredClone(message)] : [];
  try {
    const stream = await transport.sendMessages({
      chatId: id, messages: [...messages, ...goesOn], trigger: "submit-message", messageId: undefined, abortSignal: abort.signal,
    });
    for await (const state of readUIMessageStream({ stream, message: goesOn[0], onError: (error) => errors.push(String(error.message)) })) {
      message = state;
      if (text.startsWith("stop:") && state.parts.some((part) => part.type === "text" && part.text)) abort.abort();
    }
  } catch (error) {
    errors.push(String(error.message));
  }
  if (message) messages.push(message);
  printed.push({ parts: message?.parts ?? [], errors });
}
console.log(JSON.stringify(printed));
