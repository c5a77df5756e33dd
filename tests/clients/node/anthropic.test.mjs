// The Node client `@anthropic-ai/sdk`: messages, streams, tools, counting, errors.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import Anthropic from "@anthropic-ai/sdk";
import { ask, city, key, model, oneAtATime, root } from "./served.mjs";

const client = new Anthropic({ baseURL: root, apiKey: key, maxRetries: 0 });
const greedy = { model, temperature: 0, max_tokens: 80 };
const user = (content) => ({ role: "user", content });
const weather = { name: "weather", description: "The weather in a city.", input_schema: city };

test("a stream says what a whole message says", async () => {
  const asked = { ...greedy, system: "You answer in one word.", messages: [user("What is the capital of France?")] };
  const whole = await client.messages.create(asked);
  assert.match(whole.content[0].text, /Paris/);
  const stream = client.messages.stream(asked);
  let text = "";
  stream.on("text", (delta) => (text += delta));
  const final = await stream.finalMessage();
  assert.equal(text, whole.content[0].text);
  assert.equal(final.stop_reason, whole.stop_reason);
  const { input_tokens } = await client.messages.countTokens({ model, system: asked.system, messages: asked.messages });
  assert.equal(input_tokens, whole.usage.input_tokens);
});

test("a tool is used and its answer told", async () => {
  const asked = { ...greedy, tools: [weather] };
  const first = await client.messages.stream({ ...asked, messages: [user(ask)] }).finalMessage();
  assert.equal(first.stop_reason, "tool_use");
  const use = first.content.find((block) => block.type === "tool_use");
  assert.equal(use.input.city, "Oslo");
  const result = { type: "tool_result", tool_use_id: use.id, content: "11 degrees and rain" };
  const messages = [user(ask), { role: "assistant", content: first.content }, user([result])];
  const answer = await client.messages.create({ ...asked, messages, tool_choice: { type: "none" } });
  assert.equal(answer.content[0].type, "text");
});

test("a forced tool", async () => {
  const asked = { ...greedy, messages: [user("Oslo")], tools: [weather], tool_choice: { type: "tool", name: "weather" } };
  const [use] = (await client.messages.create(asked)).content;
  assert.equal(typeof use.input.city, "string");
});

test("errors are the client's own", async () => {
  await assert.rejects(client.messages.create({ ...greedy, model: "no-such", messages: [user("x")] }), Anthropic.NotFoundError);
  await assert.rejects(client.messages.create({ ...greedy, messages: [] }), Anthropic.BadRequestError);
});

test("keys: a wrong one, and a refusal for the time that is tried again", { skip: !oneAtATime }, async () => {
  const asked = { model, messages: [user("Tell a long story of a king, a fox and a mountain.")], max_tokens: 4 };
  const wrong = new Anthropic({ baseURL: root, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(wrong.messages.create(asked), Anthropic.AuthenticationError);
  const limited = new Anthropic({ baseURL: root, apiKey: oneAtATime, maxRetries: 0 });
  const first = await limited.messages.create({ ...asked, max_tokens: 400, stream: true });
  const events = first[Symbol.asyncIterator]();
  await events.next();
  await assert.rejects(limited.messages.create(asked), Anthropic.RateLimitError);
  const second = limited.messages.create(asked, { maxRetries: 5 });
  await sleep(200); // for its first try
  first.controller.abort();
  assert.ok((await second).usage.output_tokens > 0);
});
