// The examples of docs/guides/clients.md run as they stand there, but for the address and the model's name.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { key, model, root } from "./served.mjs";

const guide = readFileSync(new URL("../../../docs/guides/clients.md", import.meta.url), "utf8");

for (const [, code] of guide.matchAll(/^```js\n(.+?)^```$/gms)) {
  test(code.split("\n")[0], () => {
    const here = code.replaceAll("http://127.0.0.1:8000", root).replaceAll("qwen-coder", model).replaceAll('"none"', `"${key}"`);
    assert.ok(execFileSync("node", ["--input-type=module", "-e", here], { encoding: "utf8", timeout: 120_000 }).trim());
  });
}
