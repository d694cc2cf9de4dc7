// Talking to the server. Everything is relative to the page, so a proxy may put it anywhere.

const base = new URL('./', location.href);

function headers(key) {
  const h = { 'Content-Type': 'application/json' };
  if (key) h.Authorization = 'Bearer ' + key;
  return h;
}

async function failure(resp) {
  let message = resp.status + ' ' + resp.statusText;
  try {
    message = (await resp.json()).error.message;
  } catch { /* not one of our errors */ }
  return new Error(message);
}

// models lists what the server offers.
export async function models(key) {
  const resp = await fetch(new URL('v1/models', base), { headers: headers(key) });
  if (!resp.ok) throw await failure(resp);
  return (await resp.json()).data;
}

// events cuts a stream of server-sent events into their data.
export async function* events(body) {
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

// props tells how a model is set up; null when it is not loaded.
export async function props(model, key) {
  const resp = await fetch(new URL('props?model=' + encodeURIComponent(model), base), { headers: headers(key) });
  if (!resp.ok) return null;
  const p = await resp.json();
  return p.chat_template_caps ? p : null;
}

// stream yields the chunks of an answer until it ends or signal aborts it.
export async function* stream(path, request, key, signal) {
  const resp = await fetch(new URL(path, base), {
    method: 'POST', headers: headers(key), signal,
    body: JSON.stringify({ ...request, stream: true, timings_per_token: true, stream_options: { include_usage: true } }),
  });
  if (!resp.ok) throw await failure(resp);
  for await (const data of events(resp.body)) {
    if (data === '[DONE]') return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    yield chunk;
  }
}
