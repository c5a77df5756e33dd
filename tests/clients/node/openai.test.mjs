// The Node client `openai`: chat, tools, structured output, Responses, files and batches, errors.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import OpenAI, { toFile } from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { ada, ask, base, city, key, model, oneAtATime } from "./served.mjs";

const client = new OpenAI({ baseURL: base, apiKey: key, maxRetries: 0 });
const greedy = { model, temperature: 0, max_tokens: 80 };
const weather = { type: "function", function: { name: "weather", description: "The weather in a city.", parameters: city } };
const user = (content) => [{ role: "user", content }];

test("models", async () => {
  const names = [];
  for await (const each of client.models.list()) names.push(each.id);
  assert.ok(names.includes(model));
});

test("a stream says what a whole answer says", async () => {
  const asked = { ...greedy, messages: user("Count from 1 to 5.") };
  const whole = await client.chat.completions.create(asked);
  const stream = client.chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
  let text = "";
  stream.on("content", (delta) => (text += delta));
  const final = await stream.finalChatCompletion();
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(final.choices[0].finish_reason, whole.choices[0].finish_reason);
  assert.deepEqual(await stream.totalUsage(), { ...whole.usage, ...(await stream.totalUsage()) });
});

test("a completion is streamed", async () => {
  let text = "";
  const stream = await client.completions.create({ model, prompt: "1, 2, 3,", max_tokens: 8, temperature: 0, stream: true });
  for await (const chunk of stream) text += chunk.choices[0].text;
  assert.match(text, /4/);
});

test("tools are run, and their answers told", async () => {
  const asked = [];
  const runner = client.chat.completions.runTools({
    ...greedy,
    stream: true,
    messages: user(ask),
    tools: [{
      type: "function",
      function: { ...weather.function, parse: JSON.parse, function: ({ city }) => (asked.push(city), "11 degrees and rain") },
    }],
  }, { maxChatCompletions: 2 }); // a model of 0.5B asks again for what it was just told
  await runner.done();
  assert.equal(asked[0], "Oslo");
  assert.deepEqual(runner.messages.slice(0, 4).map((each) => each.role), ["user", "assistant", "tool", "assistant"]);
});

test("a required call", async () => {
  const asked = { ...greedy, messages: user("Oslo"), tools: [weather], tool_choice: "required" };
  const { choices } = await client.chat.completions.create(asked);
  assert.equal(choices[0].finish_reason, "tool_calls");
  assert.ok(JSON.parse(choices[0].message.tool_calls[0].function.arguments).city);
});

test("an answer of a type", async () => {
  const format = zodResponseFormat(z.object({ name: z.string(), age: z.number().int() }), "person");
  const { choices } = await client.chat.completions.parse({ ...greedy, messages: user(ada), response_format: format });
  assert.deepEqual(choices[0].message.parsed, { name: "Ada Lovelace", age: 36 });
});

test("responses, whole, streamed and going on", async () => {
  const first = await client.responses.create({ model, input: "Say only: hello", temperature: 0, max_output_tokens: 20 });
  assert.match(first.output_text, /hello/i);
  const stream = client.responses.stream({ model, input: "Again.", previous_response_id: first.id, max_output_tokens: 20 });
  let text = "";
  stream.on("response.output_text.delta", (event) => (text += event.delta));
  assert.equal((await stream.finalResponse()).output_text, text);
  await client.responses.delete(first.id);
});

test("a batch by file", async () => {
  const line = { custom_id: "a", method: "POST", url: "/v1/chat/completions", body: { ...greedy, max_tokens: 8, messages: user("Hi") } };
  const file = await client.files.create({ file: await toFile(Buffer.from(JSON.stringify(line)), "in.jsonl"), purpose: "batch" });
  let batch = await client.batches.create({ input_file_id: file.id, endpoint: line.url, completion_window: "24h" });
  for (let tries = 0; batch.status !== "completed" && tries < 120; tries++) {
    await sleep(500);
    batch = await client.batches.retrieve(batch.id);
  }
  const answer = JSON.parse(await (await client.files.content(batch.output_file_id)).text());
  assert.equal(answer.response.status_code, 200);
  await client.files.delete(file.id);
});

test("errors are the client's own", async () => {
  await assert.rejects(client.chat.completions.create({ model: "no-such", messages: user("x") }), OpenAI.NotFoundError);
  await assert.rejects(client.chat.completions.create({ model, messages: [] }), (error) => error.param === "messages");
});

test("an aborted stream ends", async () => {
  const stream = await client.chat.completions.create({ model, messages: user("Tell a long story."), stream: true });
  for await (const chunk of stream) {
    assert.ok(chunk.choices);
    stream.controller.abort();
  }
});

test("keys: a wrong one, and a refusal for the time that is tried again", { skip: !oneAtATime }, async () => {
  const asked = { model, messages: user("Say hello"), max_tokens: 4 };
  const wrong = new OpenAI({ baseURL: base, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(wrong.chat.completions.create(asked), OpenAI.AuthenticationError);
  const limited = new OpenAI({ baseURL: base, apiKey: oneAtATime, maxRetries: 0 });
  const first = await limited.chat.completions.create({ ...asked, max_tokens: 400, ignore_eos: true, stream: true });
  const chunks = first[Symbol.asyncIterator]();
  await chunks.next();
  await assert.rejects(limited.chat.completions.create(asked), OpenAI.RateLimitError);
  const second = limited.chat.completions.create(asked, { maxRetries: 5 });
  await sleep(200); // for its first try
  first.controller.abort();
  assert.ok((await second).usage.completion_tokens > 0);
});
