// Ollama's own client.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Ollama } from 'ollama';
import { call, says, url } from './script.js';

const client = new Ollama({ host: url });
const tools = [{ type: 'function', function: { name: 'weather', description: 'd', parameters: { type: 'object', properties: { city: { type: 'string' } } } } }];

test('a loop with tools, streamed', async () => {
  const messages = [{ role: 'user', content: says('I look. ' + call('weather', { city: 'Bonn' }), 'It rains.') }];
  const calls = [];
  let text = '';
  let last;
  for await (const part of await client.chat({ model: 'tiny', messages, tools, stream: true })) {
    text += part.message.content;
    calls.push(...(part.message.tool_calls ?? []));
    last = part;
  }
  assert.equal(text.trim(), 'I look.');
  assert.deepEqual(calls, [{ function: { name: 'weather', arguments: { city: 'Bonn' } } }]);
  assert.ok(last.done && last.eval_count > 0);
  messages.push({ role: 'assistant', content: text, tool_calls: calls }, { role: 'tool', tool_name: 'weather', content: 'rain' });
  const end = await client.chat({ model: 'tiny', messages, tools });
  assert.equal(end.message.content, 'It rains.');
});

test('generate, formats and errors', async () => {
  const r = await client.generate({ model: 'tiny', prompt: says('Hello.') });
  assert.equal(r.response, 'Hello.');
  let text = '';
  for await (const part of await client.generate({ model: 'tiny', prompt: says('Hello again.'), stream: true })) text += part.response;
  assert.equal(text, 'Hello again.');
  const schema = { type: 'object', properties: { ok: { type: 'boolean' } }, required: ['ok'] };
  const j = await client.chat({ model: 'tiny', messages: [{ role: 'user', content: 'x' }], format: schema, options: { num_predict: 100, seed: 1 } });
  assert.equal(typeof JSON.parse(j.message.content).ok, 'boolean');
  await assert.rejects(client.chat({ model: 'tiny', messages: [{ role: 'user', content: 'x', images: ['aGk='] }] }), /images/);
});

test('models and embeddings', async () => {
  assert.ok((await client.list()).models.length === 1);
  assert.ok((await client.ps()).models.length === 1);
  assert.match((await client.version()).version, /^\d+\.\d+\.\d+$/);
  const show = await client.show({ model: 'qwen35' });
  assert.ok(show.capabilities.includes('tools'));
  assert.equal((await client.pull({ model: 'qwen35' })).status, 'success');
  assert.equal((await client.embed({ model: 'qwen35', input: ['a', 'b'] })).embeddings.length, 2);
});
