// The server that is called; the runner says where.
export const root = process.env.APPLIANCE_URL.replace(/\/$/, "");
export const base = `${root}/v1`;
export const key = process.env.APPLIANCE_KEY ?? "none";
export const oneAtATime = process.env.APPLIANCE_KEY_ONE_AT_A_TIME; // a key; without it the server has none
const models = await fetch(`${base}/models`, { headers: { authorization: `Bearer ${key}` } });
export const model = (await models.json()).data[0].id;

export const ask = "What is the weather in Oslo? Use the tool.";
export const ada = "Ada Lovelace is 36 years old. Who is it? Answer as JSON.";
export const city = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
export const person = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};
