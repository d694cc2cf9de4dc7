// What the tests of this folder share. The server's model says what the last message of the user wants it to say; see
// server/clients_test.go, which starts it and sets STROBE_URL.
import assert from 'node:assert/strict';

export const url = process.env.STROBE_URL;
assert.ok(url, 'STROBE_URL is not set; e2e/run starts a server and sets it');

// says is a user's message that makes the model answer with the first text, and with the next one after each result of a tool.
export const says = (...texts) => `Please. SCRIPT[${Buffer.from(JSON.stringify(texts)).toString('base64')}]`;

export const call = (name, args) => `<tool_call>\n${JSON.stringify({ name, arguments: args })}\n</tool_call>`;
