// Vercel's AI SDK with OpenAI's provider, which keeps conversations in the Responses API.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';
import { call, says, url } from './script.js';

const requests = [];
const openai = createOpenAI({
  baseURL: url + '/v1', apiKey: 'x',
  fetch: (u, init) => { requests.push(JSON.parse(init.body)); return fetch(u, init); },
});
const weather = tool({
  description: 'the weather', inputSchema: z.object({ city: z.string(), days: z.number().int() }),
  execute: async ({ city, days }) => `rain in ${city} for ${days} days`,
});

for (const [name, model] of [['responses', openai('tiny')], ['chat', openai.chat('tiny')]]) {
  test(`${name}: a loop with tools, then a second turn`, async () => {
    const first = [{ role: 'user', content: says('Let me look. ' + call('weather', { city: 'Bonn', days: 2 }), 'It rains.') }];
    const loop = await generateText({ model, tools: { weather }, stopWhen: stepCountIs(5), messages: first });
    assert.equal(loop.text, 'It rains.');
    assert.equal(loop.steps.length, 2);
    assert.equal(loop.steps[0].toolResults[0].output, 'rain in Bonn for 2 days');
    requests.length = 0;
    const second = streamText({ model, tools: { weather }, stopWhen: stepCountIs(5), messages: [...first, ...loop.response.messages, { role: 'user', content: says('As I said.') }] });
    let text = '';
    for await (const t of second.textStream) text += t;
    assert.equal(text, 'As I said.');
    if (name === 'responses') assert.ok(requests[0].input.some((i) => i.type === 'item_reference'), JSON.stringify(requests[0].input));
  });

  test(`${name}: a loop with tools, streamed`, async () => {
    const run = streamText({ model, tools: { weather }, stopWhen: stepCountIs(5), prompt: says(call('weather', { city: 'Köln', days: 1 }), 'Rain.') });
    let text = '';
    for await (const t of run.textStream) text += t;
    assert.equal(text, 'Rain.');
    assert.equal((await run.steps)[0].toolResults[0].output, 'rain in Köln for 1 days');
  });
}

test('responses: previousResponseId', async () => {
  const one = await generateText({ model: openai('tiny'), prompt: says('My name is Go.') });
  const two = await generateText({ model: openai('tiny'), prompt: says('Go.'), providerOptions: { openai: { previousResponseId: one.providerMetadata.openai.responseId } } });
  assert.equal(two.text, 'Go.');
  assert.ok(two.usage.inputTokens > one.usage.inputTokens);
});

test('responses: nothing stored', async () => {
  const providerOptions = { openai: { store: false } };
  const first = [{ role: 'user', content: says(call('weather', { city: 'Bonn', days: 2 }), 'It rains.') }];
  const loop = await generateText({ model: openai('tiny'), tools: { weather }, stopWhen: stepCountIs(5), messages: first, providerOptions });
  assert.equal(loop.text, 'It rains.');
});
