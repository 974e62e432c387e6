// Talks to a server with AG-UI's agent and prints its messages and state after each turn.
// Arguments: the address, the thread, then a message each; a message is text, or JSON parts.
// `HEADERS` has more headers of the requests, as JSON. A message that begins with "stop:" is aborted once some text has come;
// "approve:" and "deny:" with a reason decide about the calls that wait.
import { HttpAgent } from "@ag-ui/client";

const [url, threadId, ...said] = process.argv.slice(2);
const agent = new HttpAgent({ url, threadId, headers: JSON.parse(process.env.HEADERS ?? "{}"), initialState: { page: "shop" } });
const printed = [];
for (const text of said) {
  const content = text.startsWith("[") ? JSON.parse(text) : text;
  const [, verdict, reason] = text.match(/^(approve|deny):(.*)$/) ?? [];
  const payload = { approved: verdict === "approve", reason };
  const resume = verdict && agent.pendingInterrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload }));
  if (!verdict) agent.messages.push({ id: `m${agent.messages.length}`, role: "user", content });
  const before = agent.messages.length;
  const errors = [];
  try {
    await agent.runAgent({ resume }, {
      onRunErrorEvent: ({ event }) => { errors.push(event.message); },
      onTextMessageContentEvent: () => { if (text.startsWith("stop:")) agent.abortRun(); },
    });
  } catch (error) {
    errors.push(String(error.message));
  }
  const messages = agent.messages.slice(before).map(({ id, ...rest }) => rest);
  printed.push({ messages, state: agent.state, errors });
}
console.log(JSON.stringify(printed));
