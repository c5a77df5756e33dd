"use strict";
// The reference of the API, drawn from its OpenAPI document: from the page itself in a saved copy, else from the server.

const $ = (id) => document.getElementById(id);
const element = (tag, text = "", className = "") => {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
};

async function load() {
  const held = $("schema");
  if (held) return JSON.parse(held.textContent);
  const headers = $("key").value ? { Authorization: `Bearer ${$("key").value}` } : {};
  const answer = await fetch("openapi.json", { headers, cache: "no-store" });
  if (answer.status === 401) $("key-box").hidden = false;
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  return answer.json();
}

function follow(schema, whole) {
  const name = schema?.$ref?.split("/").pop();
  return name ? whole.components.schemas[name] : schema;
}

function kind(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.anyOf) return schema.anyOf.map(kind).join(" | ");
  if (schema.type === "array") return `[${kind(schema.items) || "any"}]`;
  return String(schema.type ?? "any");
}

function fieldTable(schema) {
  const table = element("table");
  for (const [name, field] of Object.entries(schema.properties || {})) {
    const row = element("tr");
    const needed = (schema.required || []).includes(name) ? "required" : "";
    const fallback = field.default === undefined ? "" : JSON.stringify(field.default);
    row.append(...[name, kind(field), needed || fallback, field.description || ""].map((text) => element("td", text)));
    table.append(row);
  }
  return table;
}

function operationView(path, method, operation, whole) {
  const box = element("details");
  box.append(element("summary", `${method.toUpperCase()} ${path}`), element("p", operation.summary || ""));
  const body = follow(operation.requestBody?.content?.["application/json"]?.schema, whole);
  if (body?.properties) box.append(element("h2", "Request"), fieldTable(body));
  const answers = element("ul");
  for (const [status, answer] of Object.entries(operation.responses)) {
    answers.append(element("li", `${status} ${answer.description}`));
  }
  box.append(element("h2", "Answers"), answers);
  return box;
}

async function draw() {
  try {
    const whole = await load();
    $("about").textContent = `${whole.info.title} ${whole.info.version}: ${whole.info.description}`;
    const views = Object.entries(whole.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, operation]) => operationView(path, method, operation, whole)));
    $("operations").replaceChildren(...views);
    $("notice").hidden = true;
  } catch (error) {
    $("notice").textContent = error.message;
    $("notice").hidden = false;
  }
}

$("key").addEventListener("change", draw);
draw();
