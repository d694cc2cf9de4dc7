// OpenAI's client: the memory of the Responses API.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI from 'openai';
import { call, says, url } from './script.js';

const client = new OpenAI({ baseURL: url + '/v1', apiKey: 'x', maxRetries: 0 });
const tools = [{ type: 'function', name: 'weather', parameters: { type: 'object', properties: { city: { type: 'string' } } } }];

test('a response is kept, continued and deleted', async () => {
  const one = await client.responses.create({ model: 'tiny', input: says(call('weather', { city: 'Bonn' }), 'It rains.'), tools });
  const f = one.output[0];
  assert.equal(f.type, 'function_call');
  assert.deepEqual(JSON.parse(f.arguments), { city: 'Bonn' });
  const two = await client.responses.create({
    model: 'tiny', previous_response_id: one.id, tools, input: [{ type: 'function_call_output', call_id: f.call_id, output: 'rain' }],
  });
  assert.equal(two.output_text, 'It rains.');
  const again = await client.responses.retrieve(two.id);
  assert.equal(again.output[0].content[0].text, 'It rains.');
  const items = await client.responses.inputItems.list(two.id);
  assert.equal(items.data[0].output, 'rain');
  const n = await client.responses.inputTokens.count({ model: 'tiny', previous_response_id: one.id, tools, input: 'x' });
  assert.ok(n.input_tokens > 10);
  await client.responses.delete(two.id);
  await assert.rejects(client.responses.retrieve(two.id), (e) => e instanceof OpenAI.NotFoundError);
  await assert.rejects(client.responses.create({ model: 'tiny', previous_response_id: two.id, input: 'x' }), (e) => e.code === 'previous_response_not_found');
});
