// OpenAI's client for JavaScript against a live server; STROBE_URL says where, STROBE_KEY with which key.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI from 'openai';

const url = process.env.STROBE_URL;
const key = process.env.STROBE_KEY ?? 'sesame';
// Where the model runs: the same server, or one behind it.
const back = process.env.STROBE_BACK || url;
const backKey = process.env.STROBE_BACK_KEY ?? key;
assert.ok(url, 'STROBE_URL is not set; e2e/run starts a server and sets it');
const client = new OpenAI({ baseURL: url + '/v1', apiKey: key, maxRetries: 0 });

const hello = (max) => ({
  model: 'tiny', temperature: 0, seed: 1, max_completion_tokens: max,
  messages: [{ role: 'developer', content: 'Be brief.' }, { role: 'user', content: 'Hello' }],
});

const tool = {
  type: 'function',
  function: {
    name: 'get_weather',
    parameters: {
      type: 'object', required: ['city', 'days'],
      properties: { city: { enum: ['Bonn', 'Köln'] }, days: { type: 'integer', minimum: 1, maximum: 9 } },
    },
  },
};

function checkArguments(text) {
  const v = JSON.parse(text);
  assert.ok(['Bonn', 'Köln'].includes(v.city), text);
  assert.ok(Number.isInteger(v.days) && v.days >= 1 && v.days <= 9, text);
}

// idle waits until no slot is busy.
async function idle() {
  for (let i = 0; i < 100; i++) {
    const resp = await fetch(back + '/slots', { headers: { Authorization: 'Bearer ' + backKey } });
    if ((await resp.json()).every((s) => !s.is_processing)) return;
    await new Promise((done) => setTimeout(done, 20));
  }
  assert.fail('a slot is still busy');
}

test('plain and streamed answers are the same', async () => {
  const whole = await client.chat.completions.create(hello(24));
  const text = whole.choices[0].message.content;
  assert.ok(text);
  assert.equal(whole.model, 'tiny');
  const stream = await client.chat.completions.create({ ...hello(24), stream: true, stream_options: { include_usage: true } });
  let got = '';
  let usage;
  for await (const chunk of stream) {
    got += chunk.choices[0]?.delta.content ?? '';
    usage = chunk.usage ?? usage;
  }
  assert.equal(got, text);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test('tools', async () => {
  const request = { ...hello(300), tools: [tool], tool_choice: 'required', parallel_tool_calls: false };
  const whole = await client.chat.completions.create(request);
  const call = whole.choices[0].message.tool_calls[0];
  assert.equal(call.function.name, 'get_weather');
  checkArguments(call.function.arguments);
  const runner = client.chat.completions.stream(request);
  const final = await runner.finalChatCompletion();
  assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
  assert.equal(final.choices[0].finish_reason, 'tool_calls');
  const after = await client.chat.completions.create({
    ...hello(8), tools: [tool], tool_choice: 'none',
    messages: [...request.messages, whole.choices[0].message, { role: 'tool', tool_call_id: call.id, content: 'Rain.' }],
  });
  assert.ok(!after.choices[0].message.tool_calls);
});

test('JSON schema', async () => {
  const schema = { type: 'object', additionalProperties: false, required: ['ok', 'word'], properties: { ok: { type: 'boolean' }, word: { type: 'string', maxLength: 6 } } };
  const whole = await client.chat.completions.create({ ...hello(200), response_format: { type: 'json_schema', json_schema: { name: 'x', strict: true, schema } } });
  const v = JSON.parse(whole.choices[0].message.content);
  assert.equal(typeof v.ok, 'boolean');
  assert.equal(typeof v.word, 'string');
});

test('responses', async () => {
  const whole = await client.responses.create({ model: 'tiny', input: 'Hello', max_output_tokens: 16, temperature: 0 });
  assert.ok(whole.output_text);
  const stream = client.responses.stream({ model: 'tiny', input: 'Hello', max_output_tokens: 16, temperature: 0 });
  let got = '';
  stream.on('response.output_text.delta', (e) => { got += e.delta; });
  const final = await stream.finalResponse();
  assert.equal(got, whole.output_text);
  assert.equal(final.output_text, got);
});

test('embeddings and models', async () => {
  const e = await client.embeddings.create({ model: 'tiny', input: ['a', 'b'] }); // asks for base64
  assert.equal(e.data.length, 2);
  assert.equal(e.data[0].embedding.length, 64);
  const length = Math.hypot(...e.data[0].embedding);
  assert.ok(Math.abs(length - 1) < 1e-4, String(length));
  const list = await client.models.list();
  assert.deepEqual(list.data.map((m) => m.id), ['tiny']);
});

test('leaving in the middle of a stream', async () => {
  const stream = await client.chat.completions.create({ ...hello(4000), stream: true, ignore_eos: true });
  let n = 0;
  for await (const _ of stream) {
    if (++n === 3) break; // the client aborts the request
  }
  await idle();
});

test('errors', async () => {
  await assert.rejects(client.chat.completions.create({ ...hello(5), temperature: 'hot' }), (e) => e.status === 400 && e.param === 'temperature' && e instanceof OpenAI.BadRequestError);
  await assert.rejects(client.models.retrieve('nope'), (e) => e instanceof OpenAI.NotFoundError);
  const bad = new OpenAI({ baseURL: url + '/v1', apiKey: 'wrong', maxRetries: 0 });
  await assert.rejects(bad.models.list(), (e) => e instanceof OpenAI.AuthenticationError);
});
