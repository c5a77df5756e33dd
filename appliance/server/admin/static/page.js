"use strict";
// The page for people. It talks to its own server alone, and shows what comes only as text, never as markup.

const $ = (id) => document.getElementById(id);
const element = (tag, text = "", className = "") => {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
};
const drawn = (tag, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};

// ---- the server ----

async function ask(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if ($("key").value) headers.Authorization = `Bearer ${$("key").value}`;
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (answer.status === 401) $("key-box").hidden = false;
  if (!answer.ok) throw new Error(await errorText(answer));
  return answer;
}

async function errorText(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the server answers ${answer.status}`;
  }
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

// ---- views ----

const views = ["chat", "figures", "plan"];
let polling = 0;

function show(view) {
  for (const name of views) {
    const tab = $(`tab-${name}`);
    tab.setAttribute("aria-selected", String(name === view));
    tab.tabIndex = name === view ? 0 : -1;
    $(name).hidden = name !== view;
  }
  clearInterval(polling);
  if (view === "figures") {
    poll();
    polling = setInterval(poll, 1000);
  }
  if (view === "plan") loadPlan();
}

for (const [place, name] of views.entries()) {
  $(`tab-${name}`).addEventListener("click", () => show(name));
  $(`tab-${name}`).addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: views.length - 1 }[event.key];
    if (step === undefined) return;
    const next = views[(place + step) % views.length];
    show(next);
    $(`tab-${next}`).focus();
  });
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
}

$("theme").addEventListener("click", () => {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (isDark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  setTheme(next);
  localStorage.setItem("theme", next);
});

// ---- chat ----

let history = [];
let running = null;

function request() {
  const body = { model: $("model").value, stream: true, stream_options: { include_usage: true } };
  const system = $("system").value.trim();
  body.messages = system ? [{ role: "system", content: system }, ...history] : [...history];
  for (const name of ["temperature", "top_p", "top_k", "max_tokens", "seed"]) {
    if ($(name).value !== "") body[name] = Number($(name).value);
  }
  if ($("stop-text").value) body.stop = [$("stop-text").value];
  if ($("format").value === "json_object") body.response_format = { type: "json_object" };
  if ($("format").value === "json_schema") {
    const schema = parsed("schema", "the schema");
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  if ($("tools").value.trim()) {
    const tools = parsed("tools", "the list of tools");
    body.tools = tools.map((tool) => (tool.function ? tool : { type: "function", function: tool }));
    body.tool_choice = $("tool_choice").value;
  }
  return body;
}

function parsed(id, what) {
  try {
    return JSON.parse($(id).value);
  } catch (error) {
    throw new Error(`${what} is not JSON: ${error.message}`);
  }
}

// One answer as it grows: text with fenced code, reasoning apart, calls of tools below.
class AnswerView {
  constructor() {
    this.box = element("div", "", "message assistant");
    this.text = "";
    this.reasoning = "";
    this.calls = [];
    $("messages").append(this.box);
  }

  take(delta) {
    this.text += delta.content || "";
    this.reasoning += delta.reasoning_content || delta.reasoning || "";
    for (const part of delta.tool_calls || []) {
      const call = (this.calls[part.index] ||= { id: "", name: "", arguments: "" });
      call.id += part.id || "";
      call.name += part.function?.name || "";
      call.arguments += part.function?.arguments || "";
    }
    this.draw();
  }

  draw() {
    this.box.replaceChildren();
    if (this.reasoning) {
      const details = element("details");
      details.open = !this.text;
      details.append(element("summary", "Reasoning"), element("div", this.reasoning));
      this.box.append(details);
    }
    this.text.split("```").forEach((part, place, parts) => {
      if (place % 2) {
        this.box.append(element("pre", part.replace(/^[\w+-]*\n/, "")));
        return;
      }
      const before = place ? part.replace(/^\n+/, "") : part;
      this.box.append(place < parts.length - 1 ? before.replace(/\n+$/, "") : before);
    });
    for (const call of this.calls.filter(Boolean)) {
      this.box.append(element("code", `${call.name}(${call.arguments})`, "call"));
    }
    $("messages").scrollTop = $("messages").scrollHeight;
  }

  message() {
    const message = { role: "assistant", content: this.text };
    const calls = this.calls.filter(Boolean);
    if (calls.length) {
      message.tool_calls = calls.map(({ id, name, arguments: given }) => (
        { id, type: "function", function: { name, arguments: given } }
      ));
    }
    return message;
  }
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const whole = held.split("\n\n");
    held = whole.pop();
    for (const event of whole) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function send(event) {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (!text || running) return;
  $("empty")?.remove();
  $("messages").append(element("div", text, "message user"));
  history.push({ role: "user", content: text });
  $("prompt").value = "";
  busy(new AbortController());
  try {
    await answer(request());
  } catch (error) {
    if (error.name !== "AbortError") fail(error.message);
  }
  busy(null);
  $("prompt").focus();
}

async function answer(body) {
  const began = performance.now();
  let first = 0;
  let usage = null;
  const view = new AnswerView();
  try {
    const options = { method: "POST", headers: { "Content-Type": "application/json" }, signal: running.signal };
    for await (const event of events(await ask("v1/chat/completions", { ...options, body: JSON.stringify(body) }))) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage || usage;
      const delta = event.choices?.[0]?.delta;
      if (!delta) continue;
      first ||= delta.content || delta.tool_calls ? performance.now() : 0;
      view.take(delta);
    }
  } finally {
    if (view.text || view.calls.length) history.push(view.message());
    else view.box.remove();
    timing(began, first, usage);
  }
}

function timing(began, first, usage) {
  if (!first) return;
  const seconds = (performance.now() - first) / 1000;
  const parts = [`first token ${Math.round(first - began)} ms`];
  if (usage) {
    parts.push(`${usage.completion_tokens} tokens`);
    if (seconds > 0.05) parts.push(`${(usage.completion_tokens / seconds).toFixed(1)} a second`);
  }
  $("timing").textContent = parts.join(" \u00b7 ");
}

function busy(controller) {
  running = controller;
  $("send").disabled = Boolean(controller);
  $("stop").hidden = !controller;
}

function fail(text) {
  $("messages").append(element("div", text, "message failed"));
  history.pop();
}

$("composer").addEventListener("submit", send);
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", () => {
  running?.abort();
  history = [];
  $("messages").replaceChildren();
  $("timing").textContent = "";
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
});

// ---- figures ----

const KEPT = 120;
const PLOTS = [
  { title: "Generated tokens a second", value: rate("generation_tokens_total"), digits: 0 },
  { title: "Prompt tokens a second", value: rate("prompt_tokens_total"), digits: 0 },
  { title: "Time to first token, ms", value: mean("time_to_first_token_seconds"), digits: 1 },
  { title: "Time between tokens, ms", value: mean("inter_token_seconds"), digits: 2 },
  { title: "Running sequences", value: (now) => now.requests_running, digits: 0 },
  { title: "Waiting sequences", value: (now) => now.requests_waiting, digits: 0 },
  { title: "KV cache used, %", value: (now) => now.kv_cache_usage_ratio * 100, digits: 1 },
];
let last = null;

function rate(name) {
  return (now, before) => Math.max(0, (now[name] - before[name]) / (now.at - before.at));
}

function mean(name) {
  return (now, before) => {
    const count = now[`${name}_count`] - before[`${name}_count`];
    return count > 0 ? (1000 * (now[`${name}_sum`] - before[`${name}_sum`])) / count : null;
  };
}

async function poll() {
  let text;
  try {
    text = await (await ask("metrics")).text();
  } catch (error) {
    notice(`no figures: ${error.message}`);
    return;
  }
  notice("");
  const now = { at: performance.now() / 1000 };
  for (const line of text.split("\n")) {
    const found = /^appliance_(\w+)\{[^}]*\} (\S+)$/.exec(line);
    if (found && !found[1].endsWith("_bucket")) now[found[1]] = (now[found[1]] || 0) + Number(found[2]);
  }
  if (last) PLOTS.forEach((plot) => draw(plot, plot.value(now, last)));
  last = now;
}

function draw(plot, value) {
  plot.figure ||= newFigure(plot);
  plot.seen ||= [];
  plot.seen.push(value ?? plot.seen.at(-1) ?? 0);
  plot.seen = plot.seen.slice(-KEPT);
  const top = Math.max(1e-9, ...plot.seen) * 1.1;
  const step = 100 / (KEPT - 1);
  const start = 100 - step * (plot.seen.length - 1);
  const points = plot.seen.map((each, place) => `${start + place * step},${40 - (38 * each) / top}`);
  plot.line.setAttribute("points", points.join(" "));
  plot.area.setAttribute("points", `${start},40 ${points.join(" ")} 100,40`);
  plot.output.textContent = plot.seen.at(-1).toLocaleString("en", { maximumFractionDigits: plot.digits });
}

function newFigure(plot) {
  const figure = element("figure");
  const caption = element("figcaption", plot.title);
  plot.output = element("output", "0");
  caption.append(plot.output);
  const picture = drawn("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img", "aria-label": plot.title });
  plot.area = drawn("polygon", { class: "plot-area" });
  plot.line = drawn("polyline", { class: "plot-line" });
  picture.append(drawn("line", { x1: 0, x2: 100, y1: 40, y2: 40, class: "plot-base" }), plot.area, plot.line);
  figure.append(caption, picture);
  $("plots").append(figure);
  return figure;
}

// ---- plan ----

const bytes = (count) => (count >= 2 ** 30 ? `${(count / 2 ** 30).toFixed(2)} GiB` : `${(count / 2 ** 20).toFixed(1)} MiB`);

async function loadPlan() {
  let plan;
  try {
    plan = await (await ask("plan")).json();
  } catch (error) {
    notice(`no plan: ${error.message}`);
    return;
  }
  notice("");
  $("summary").replaceChildren(...Object.entries(plan.summary).map(([name, value]) => {
    const card = element("div");
    card.append(element("dt", name), element("dd", String(value)));
    return card;
  }));
  $("memory").replaceChildren(...plan.memory.flatMap(memoryBar));
  $("decisions").tBodies[0].replaceChildren(...plan.decisions.map((decision) => {
    const row = element("tr");
    const value = typeof decision.value === "string" ? decision.value : JSON.stringify(decision.value);
    row.append(...[decision.path, value, decision.source, decision.reason].map((text) => element("td", text)));
    return row;
  }));
  filter();
}

function memoryBar(memory) {
  const whole = Math.max(memory.budget_bytes, memory.items.reduce((sum, item) => sum + item.size_bytes, 0));
  const bar = drawn("svg", { viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img", "aria-label": "Memory" });
  const list = element("ul");
  let at = 0;
  for (const item of memory.items) {
    const width = (1000 * item.size_bytes) / whole;
    bar.append(drawn("rect", { x: at, y: 0, width: Math.max(0, width - 1), height: 10 }));
    at += width;
    list.append(element("li", `${item.name} ${bytes(item.size_bytes)}`));
  }
  return [element("p", `${memory.device}: ${bytes(memory.budget_bytes)} to use, room for ${memory.num_tokens.toLocaleString("en")} tokens`), bar, list];
}

function filter() {
  const wanted = $("filter").value.toLowerCase();
  for (const row of $("decisions").tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
}

$("filter").addEventListener("input", filter);

// ---- start ----

async function loadModels() {
  const models = (await (await ask("v1/models")).json()).data;
  const chosen = $("model").value;
  $("model").replaceChildren(...models.map((model) => element("option", model.id)));
  if (chosen) $("model").value = chosen;
  $("models").replaceChildren(...models.map((model) => element("li", `${model.id}, context ${model.max_model_len ?? "?"}`)));
  $("title").textContent = models[0]?.id || "appliance";
}

async function look() {
  let label = "the server does not answer";
  let isReady = false;
  try {
    const body = await (await fetch("readyz", { cache: "no-store" })).json();
    isReady = body.ready;
    label = isReady ? "ready" : body.reasons.join("; ");
  } catch {
    isReady = false;
  }
  $("state").className = `dot ${isReady ? "ready" : "away"}`;
  $("state").setAttribute("aria-label", label);
  $("state").title = label;
}

async function start() {
  try {
    await loadModels();
    notice("");
  } catch (error) {
    notice(error.message);
  }
}

setTheme(localStorage.getItem("theme"));
$("key").addEventListener("change", start);
look();
setInterval(look, 5000);
start();
