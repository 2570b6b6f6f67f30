// The npm `openai` client as a user writes it: `node client.mjs BASE_URL` prints what it got.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const model = "tiny";
const messages = [{ role: "user", content: "hi" }];
const got = {};

for await (const one of client.models.list()) got.models = [...(got.models ?? []), one.id];

const chat = await client.chat.completions.create({ model, messages, n: 2, stop: ["!"], logprobs: true });
got.chat = chat.choices.map((choice) => [choice.message.content, choice.finish_reason]);
got.cached = chat.usage.prompt_tokens_details.cached_tokens;
got.token = chat.choices[0].logprobs.content[0].token;

got.chunks = [];
got.streamed = "";
const options = { include_usage: true };
for await (const chunk of await client.chat.completions.create({ model, messages, stream: true, stream_options: options })) {
  got.streamed += chunk.choices[0]?.delta?.content ?? "";
  got.chunks.push([chunk.choices.length, chunk.choices[0]?.finish_reason ?? null, chunk.usage?.completion_tokens ?? null]);
}

const helper = client.chat.completions.stream({ model, messages, stream_options: options });
got.accumulated = (await helper.finalChatCompletion()).choices[0].message.content;

const completion = await client.completions.create({ model, prompt: ["a", "b"] });
got.completions = completion.choices.map((choice) => choice.text);
got.completionStream = "";
for await (const chunk of await client.completions.create({ model, prompt: "hi", stream: true }))
  got.completionStream += chunk.choices[0]?.text ?? "";

const response = await client.responses.create({ model, input: "hi", instructions: "be brief" });
got.response = [response.output_text, response.status, response.usage.output_tokens];
got.events = [];
for await (const event of await client.responses.create({ model, input: "hi", stream: true }))
  if (got.events.at(-1) !== event.type) got.events.push(event.type);
got.finalResponse = (await client.responses.stream({ model, input: "hi" }).finalResponse()).output_text;

const { response: raw } = await client.chat.completions.create({ model, messages, user: "me" }).withResponse();
got.ignored = raw.headers.get("servekit-ignored-fields");

got.errors = [];
for (const wrong of [{ temperature: -1 }, { model: "gpt" }]) {
  try {
    await client.chat.completions.create({ model, messages, ...wrong });
  } catch (error) {
    got.errors.push([error.constructor.name, error.status, error.param]);
  }
}

const abandoned = await client.chat.completions.create({ model, messages, stream: true });
for await (const _ of abandoned) break;

console.log(JSON.stringify(got));
