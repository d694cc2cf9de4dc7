// Talking to the server. Everything is relative to the page, so a proxy may put it anywhere.

const base = new URL('./', location.href);

function headers(key) {
  const h = { 'Content-Type': 'application/json' };
  if (key) h.Authorization = 'Bearer ' + key;
  return h;
}

// Failure is what the server refused; status 401 asks for a key, 0 means that it was not reached.
export class Failure extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function ask(path, key, options) {
  let resp;
  try {
    resp = await fetch(new URL(path, base), { headers: headers(key), ...options });
  } catch (err) {
    if (err.name === 'AbortError') throw err;
    throw new Failure('The server cannot be reached.', 0);
  }
  if (resp.ok) return resp;
  let message = `The server answered ${resp.status} ${resp.statusText}`;
  try {
    const { error } = await resp.json();
    message = error.message ?? error;
  } catch { /* not one of our errors */ }
  throw new Failure(message, resp.status);
}

// models lists what the server offers.
export async function models(key) {
  return (await (await ask('v1/models', key)).json()).data;
}

// props tells how a model is set up; null when it is not loaded.
export async function props(model, key) {
  try {
    const p = await (await ask('props?model=' + encodeURIComponent(model), key)).json();
    return p.chat_template_caps ? p : null;
  } catch (err) {
    if (err instanceof Failure) return null;
    throw err;
  }
}

// server is what the server says of itself, whatever is loaded; null where it says nothing.
export async function server(key) {
  try {
    return await (await ask('props', key)).json();
  } catch (err) {
    if (err instanceof Failure) return null;
    throw err;
  }
}

// load loads a model, and unload takes it out of memory.
const post = (path, key, body, signal) => ask(path, key, { method: 'POST', signal, body: JSON.stringify(body) });
export const load = (model, key, signal) => post('models/load', key, { model }, signal);
export const unload = (model, key) => post('models/unload', key, { model });

// tokens counts those of a text. The model must be loaded, or this loads it.
export async function tokens(model, content, key) {
  return (await (await post('tokenize', key, { model, content })).json()).tokens.length;
}

// pull downloads a model, and yields what the server says of it: {status, completed, total}.
export async function* pull(name, key, signal) {
  const resp = await post('api/pull', key, { model: name }, signal);
  let rest = '';
  for await (const text of pieces(resp.body)) {
    rest += text;
    for (let end; (end = rest.indexOf('\n')) >= 0; rest = rest.slice(end + 1)) {
      const news = JSON.parse(rest.slice(0, end));
      if (news.error) throw new Failure(news.error, resp.status);
      yield news;
    }
  }
}

// mcp sends a message to an MCP server, and returns the response with the messages in it.
export async function mcp(name, message, session, version, key, signal) {
  const head = { ...headers(key), Accept: 'application/json, text/event-stream', 'MCP-Protocol-Version': version };
  if (session) head['Mcp-Session-Id'] = session;
  const resp = await ask('mcp/' + encodeURIComponent(name), key,
    { method: 'POST', headers: head, signal, body: JSON.stringify(message) });
  return { resp, messages: mcpMessages(resp, name) };
}

async function* mcpMessages(resp, name) {
  try {
    if (resp.headers.get('Content-Type')?.startsWith('text/event-stream')) {
      for await (const data of events(resp.body)) yield JSON.parse(data);
    } else {
      yield* [await resp.json()].flat();
    }
  } catch (err) {
    if (err.name === 'AbortError') throw err;
    throw new Failure(`The answer of ${name} is broken.`, 502);
  }
}

// pieces yields the text of a body as it comes.
async function* pieces(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// events cuts a stream of server-sent events into their data. Servers of others end lines in several ways.
async function* events(body) {
  let rest = '';
  for await (const text of pieces(body)) {
    rest = (rest + text).replace(/\r\n/g, '\n');
    for (let end; (end = rest.indexOf('\n\n')) >= 0; rest = rest.slice(end + 2)) {
      const data = rest.slice(0, end).split('\n').filter((line) => line.startsWith('data:'));
      if (data.length) yield data.map((line) => line.slice(line[5] === ' ' ? 6 : 5)).join('\n');
    }
  }
}

// stream yields the chunks of an answer until it ends or signal aborts it. A connection that breaks is a Failure.
export async function* stream(path, request, key, signal) {
  const body = {
    ...request, stream: true, timings_per_token: true, return_progress: true, stream_options: { include_usage: true },
  };
  const resp = await ask(path, key, { method: 'POST', signal, body: JSON.stringify(body) });
  try {
    for await (const data of events(resp.body)) {
      if (data === '[DONE]') return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Failure(chunk.error.message, resp.status);
      yield chunk;
    }
  } catch (err) {
    if (err.name === 'AbortError' || err instanceof Failure) throw err;
    throw new Failure('The connection broke.', 0);
  }
  throw new Failure('The connection ended in the middle of the answer.', 0);
}
