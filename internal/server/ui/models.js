// What the server's models are and can.

import * as api from './api.js';
import { bytes } from './dom.js';

export let all = []; // as GET /v1/models lists them
export let listed = false; // they are known
const known = new Map(); // what /props says of a loaded one

export const find = (name) => all.find((m) => m.id === name) ?? (name ? undefined : all[0]);

export async function refresh(key) {
  all = await api.models(key);
  listed = true;
  for (const m of all) if (m.state !== 'loaded') known.delete(m.id);
}

// about is what the server says of a loaded model, null of others.
export async function about(name, key) {
  const m = find(name);
  if (m?.state !== 'loaded') return null;
  if (!known.has(m.id)) known.set(m.id, await api.props(m.id, key));
  return known.get(m.id);
}

// ready loads a model, so that it is known what it can before it is asked.
export async function ready(name, key, signal) {
  const m = find(name);
  if (m && m.state !== 'loaded' && !m.replicas) {
    await api.load(m.id, key, signal);
    await refresh(key);
  }
  return about(name, key);
}

// continues reports whether a model goes on with texts instead of answering: because the person wants it, or because
// the model has no chat template.
export const continues = (mode, facts) => (mode || (facts?.chat_template_caps.fallback ? 'text' : 'chat')) === 'text';

const seconds = (since) => Math.round((Date.now() - since) / 1000);

// waitingFor says what an answer waits for.
export function waitingFor(name, since) {
  const m = find(name);
  const what = m && m.state !== 'loaded' && !m.replicas ? `Loading ${m.id}, ${bytes(m.size)}` : 'Waiting for the model';
  return `${what}: ${seconds(since)} s`;
}

// loadingFor says how long the server itself has been loading.
export const loadingFor = (since) => `The server is loading its model: ${seconds(since)} s`;

// facts lists what a person may want to know of a model.
export function facts(m, p) {
  const list = [['State', m ? m.error || m.state : 'none']];
  if (m?.arch) list.push(['Kind', m.arch]);
  if (p) {
    const context = p.default_generation_settings.n_ctx;
    const spec = p.speculative;
    const cache = p.runtime.cache_bytes_per_token * context + p.runtime.cache_bytes_per_sequence;
    list.push(['Device', p.runtime.backend], ['Memory', bytes(p.model.size) + ' of weights'],
      ['Drafter', spec.drafter ? `${spec.drafters.join(', ')}, ${bytes(spec.size)}` : 'none'],
      ['Context', `${context} tokens, ${bytes(cache)} when full`]);
  } else if (m?.size) {
    list.push(['Size', bytes(m.size)], ['Context', `${m.context_length} tokens`]);
  }
  return list;
}

// abilities is what the server itself can: {pull, mcp}.
let abilities = null;
export async function server(key) {
  abilities ??= await api.server(key);
  return { pull: Boolean(abilities?.pull), mcp: abilities?.mcp ?? [] };
}
