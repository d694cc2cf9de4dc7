// The schemas that Zod emits: each is accepted, or refused with a reason.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { z } from 'zod';
import { url } from './script.js';

const accepted = {
  string: z.string(), length: z.string().min(2).max(5), regex: z.string().regex(/^[A-Z]{2}-\d+$/), lookahead: z.string().regex(/^a(?=b)b+$/), password: z.string().regex(/^(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{4,12}$/), negative: z.string().regex(/^(?!admin)[a-z]{1,12}$/), startsWith: z.string().startsWith('ab'), template: z.templateLiteral(['a-', z.number()]),
  email: z.email(), url: z.url(), uuid: z.uuid(), datetime: z.iso.datetime(), date: z.iso.date(), time: z.iso.time(), duration: z.iso.duration(), ipv4: z.ipv4(), ipv6: z.ipv6(), base64: z.base64(), hostname: z.hostname(),
  number: z.number(), int: z.int(), positive: z.number().positive(), multipleOf: z.number().multipleOf(5), cents: z.number().multipleOf(0.01),
  boolean: z.boolean(), null: z.null(), any: z.any(), literal: z.literal('a'), enum: z.enum(['a', 'b']), nullable: z.string().nullable(), optional: z.object({ a: z.string().optional() }), default: z.object({ a: z.string().default('x') }),
  array: z.array(z.string()).min(1).max(3), tuple: z.tuple([z.string(), z.number()]), rest: z.tuple([z.string()]).rest(z.number()),
  object: z.object({ a: z.string(), b: z.number() }), strict: z.strictObject({ a: z.string() }), loose: z.looseObject({ a: z.string() }), catchall: z.object({ a: z.string() }).catchall(z.number()),
  record: z.record(z.string(), z.number()), recordEnum: z.record(z.enum(['a', 'b']), z.number()), partialRecord: z.partialRecord(z.enum(['a', 'b']), z.number()), recordRegex: z.record(z.string().regex(/^k_/), z.number()),
  union: z.union([z.string(), z.number()]), discriminated: z.discriminatedUnion('t', [z.object({ t: z.literal('a') }), z.object({ t: z.literal('b') })]),
  never: z.object({ a: z.never().optional() }), json: z.json(),
};
const refused = { lookbehind: z.string().regex(/(?<=a)b/), backreference: z.string().regex(/^(a|b)\1$/), intersection: z.object({ a: z.string() }).and(z.record(z.string(), z.number())), emoji: z.emoji() };

const ask = (schema) => fetch(url + '/v1/chat/completions', {
  method: 'POST', body: JSON.stringify({ messages: [{ role: 'user', content: 'x' }], max_tokens: 400, seed: 1, temperature: 1, response_format: { type: 'json_schema', json_schema: { name: 'x', schema } } }),
}).then(async (r) => [r.status, await r.json()]);

for (const [name, type] of Object.entries(accepted)) {
  test(`${name} is accepted and obeyed`, async () => {
    const [status, body] = await ask(z.toJSONSchema(type));
    assert.equal(status, 200, JSON.stringify(body));
    if (body.choices[0].finish_reason === 'stop') type.parse(JSON.parse(body.choices[0].message.content));
  });
}
for (const [name, type] of Object.entries(refused)) {
  test(`${name} is refused with a reason`, async () => {
    const [status, body] = await ask(z.toJSONSchema(type));
    assert.equal(status, 400);
    assert.match(body.error.message, /^schema #.*not supported/);
  });
}
