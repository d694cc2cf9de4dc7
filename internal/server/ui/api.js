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
    message = (await resp.json()).error.message;
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

// events cuts a stream of server-sent events into their data.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      for (let end; (end = rest.indexOf('\n\n')) >= 0; rest = rest.slice(end + 2)) {
        for (const line of rest.slice(0, end).split('\n')) {
          if (line.startsWith('data: ')) yield line.slice(6);
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
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
