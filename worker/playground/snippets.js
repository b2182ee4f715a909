// The request as a program: curl and the hosted API's two SDKs. A key is never written into one.

import { pretty } from "./json.js";

/** The body is a here-document: no line of JSON can be its end. */
export function curl(request, url) {
  return `curl -s '${url.replaceAll("'", "%27")}v1/systemone' \\
  -H 'Content-Type: application/json' \\
  -H "Authorization: Bearer $LAYA_API_KEY" \\
  --data-binary @- <<'JSON'
${pretty(request)}
JSON
`;
}

/** typesafe-sdk. */
export function python(request, url) {
  const literal = (value) => pretty(value, "    ", { true: "True", false: "False", null: "None" });
  return `import os

from typesafe_sdk import TypeSafeClient

client = TypeSafeClient(api_key=os.environ.get("LAYA_API_KEY") or "none", base_url=${literal(url)})
result = client.system_one(
    state=${literal(request.get("state"))},
    questions=${literal(request.get("questions"))},
    model=${literal(request.get("model") ?? null)},
)
print(result.model_dump_json(indent=2))
`;
}

/** @typesafe-ai/sdk. */
export function javascript(request, url) {
  return `import { TypeSafeClient } from "@typesafe-ai/sdk";

const client = new TypeSafeClient({ apiKey: process.env.LAYA_API_KEY || "none", baseURL: ${pretty(url)} });
const result = await client.systemOne(${pretty(request)});
console.log(JSON.stringify(result, null, 2));
`;
}
