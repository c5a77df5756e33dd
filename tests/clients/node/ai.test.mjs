// The AI SDK, `ai`, with `@ai-sdk/openai-compatible`.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { ada, ask, base, key, model as name } from "./served.mjs";

const provider = createOpenAICompatible({
  name: "appliance",
  baseURL: base,
  apiKey: key,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const greedy = { model: provider(name), temperature: 0, maxOutputTokens: 80, maxRetries: 0 };
const person = Output.object({ schema: z.object({ name: z.string(), age: z.number().int() }) });

// A model of 0.5B asks again for what it was just told.
const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber > 0 ? "none" : "auto" });

const weather = (asked) =>
  tool({
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => (asked.push(city), "11 degrees and rain"),
  });

test("a stream says what a whole answer says", async () => {
  const whole = await generateText({ ...greedy, prompt: "Count from 1 to 5." });
  const stream = streamText({ ...greedy, prompt: "Count from 1 to 5." });
  let text = "";
  for await (const delta of stream.textStream) text += delta;
  assert.equal(text, whole.text);
  assert.equal(await stream.finishReason, whole.finishReason);
  assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
  assert.ok(whole.usage.outputTokens > 0);
});

test("tools are run until there is an answer", async () => {
  const asked = [];
  const whole = await generateText({ ...greedy, prompt: ask, tools: { weather: weather(asked) }, stopWhen: stepCountIs(3), prepareStep });
  assert.ok(whole.text);
  const stream = streamText({ ...greedy, prompt: ask, tools: { weather: weather(asked) }, stopWhen: stepCountIs(3), prepareStep });
  assert.ok(await stream.text);
  assert.deepEqual(asked, ["Oslo", "Oslo"]);
});

test("a required call, streamed", async () => {
  const asked = [];
  const stream = streamText({ ...greedy, prompt: "Oslo", tools: { weather: weather(asked) }, toolChoice: "required" });
  const [call] = await stream.toolCalls;
  assert.equal(call.toolName, "weather");
  assert.ok(call.input.city);
});

test("an answer of a type", async () => {
  const whole = await generateText({ ...greedy, prompt: ada, output: person });
  assert.deepEqual(whole.output, { name: "Ada Lovelace", age: 36 });
  const stream = streamText({ ...greedy, prompt: ada, output: person });
  let last;
  for await (const partial of stream.partialOutputStream) last = partial;
  assert.deepEqual(last, whole.output);
});

test("completions", async () => {
  const { text } = await generateText({ ...greedy, model: provider.completionModel(name), prompt: "1, 2, 3,", maxOutputTokens: 8 });
  assert.match(text, /\d/);
});

test("errors are the server's", async () => {
  await assert.rejects(
    generateText({ ...greedy, model: provider("no-such"), prompt: "x" }),
    (error) => error.statusCode === 404 && !error.isRetryable,
  );
});
