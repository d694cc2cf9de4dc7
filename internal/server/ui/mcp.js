// Tools of MCP servers (Model Context Protocol). The server of this page passes the requests on (strobe serve --mcp);
// the page asks the person before every call.

import * as api from './api.js';

const version = '2025-06-18'; // of the protocol
const mostTools = 128; // of a server
const longestText = 100000; // characters of a result, or of a description; more than most contexts hold

const text = (x) => (typeof x === 'string' ? x.slice(0, longestText) : '');

// Client talks to one server.
class Client {
  constructor(name) {
    this.name = name;
    this.session = '';
    this.begun = null; // a promise of the handshake
    this.listed = null; // a promise of the tools
    this.next = 1;
  }

  // send sends a message and returns the result of a request, undefined of a notification (which has no id).
  async send(message, key, signal) {
    const { resp, messages } = await api.mcp(this.name, message, this.session, version, key, signal);
    this.session = resp.headers.get('Mcp-Session-Id') ?? this.session;
    if (message.id === undefined) return undefined;
    for await (const m of messages) {
      if (m?.id !== message.id || (m.result === undefined && !m.error)) continue; // what the server says meanwhile
      if (m.error) throw new api.Failure(`${this.name}: ${text(m.error.message) || 'error'}`, 502);
      return m.result;
    }
    throw new api.Failure(`${this.name} ended its answer without a result.`, 502);
  }

  begin(key, signal) {
    this.begun ??= (async () => {
      const client = { name: 'strobe', title: 'Strobe', version: '1' };
      await this.send({ jsonrpc: '2.0', id: this.next++, method: 'initialize',
        params: { protocolVersion: version, capabilities: {}, clientInfo: client } }, key, signal);
      await this.send({ jsonrpc: '2.0', method: 'notifications/initialized' }, key, signal);
    })().catch((err) => { this.forget(); throw err; });
    return this.begun;
  }

  forget() { this.begun = this.listed = null; this.session = ''; }

  // ask asks for something. A session that the server has forgotten is begun again, once.
  async ask(method, params, key, signal) {
    for (let first = true; ; first = false) {
      await this.begin(key, signal);
      const had = this.session;
      try {
        return await this.send({ jsonrpc: '2.0', id: this.next++, method, params }, key, signal);
      } catch (err) {
        if (err.status !== 404 || !had || !first) throw err;
        if (this.session === had) this.forget();
      }
    }
  }

  // tools lists what the server offers: {server, name, description, schema}.
  tools(key, signal) {
    this.listed ??= (async () => {
      const out = [];
      let cursor;
      for (let pages = 0; pages < mostTools && out.length < mostTools; pages++) { // a server may never end its list
        const page = await this.ask('tools/list', cursor ? { cursor } : {}, key, signal);
        for (const t of Array.isArray(page?.tools) ? page.tools : []) {
          if (!text(t?.name)) continue;
          const schema = t.inputSchema && typeof t.inputSchema === 'object' ? t.inputSchema : { type: 'object' };
          out.push({ server: this.name, name: text(t.name), description: text(t.description), schema });
        }
        cursor = text(page?.nextCursor);
        if (!cursor) break;
      }
      return out.slice(0, mostTools);
    })().catch((err) => { this.listed = null; throw err; });
    return this.listed;
  }
}

const clients = new Map(); // by name

function client(name) {
  if (!clients.has(name)) clients.set(name, new Client(name));
  return clients.get(name);
}

// names are the servers that a conversation uses.
export const names = (settings) => (settings.mcp ?? '').split(',').filter(Boolean);

// list is what one server offers.
export const list = (server, key) => client(server).tools(key);

// used lists the tools of a conversation, each with the name by which the model knows it: letters, digits, _ and -, as
// templates and APIs allow, and no name twice. taken are names of other tools.
export async function used(settings, taken, key, signal) {
  const lists = await Promise.all(names(settings).map((n) => client(n).tools(key, signal)));
  const have = new Set(taken);
  return lists.flat().map((tool) => {
    const base = tool.name.replace(/[^\w-]/g, '_').slice(0, 60);
    let called = base;
    for (let n = 2; have.has(called); n++) called = `${base}_${n}`;
    have.add(called);
    return { ...tool, called };
  });
}

// definition is a tool as the model gets it.
export const definition = (tool) => ({
  type: 'function',
  function: { name: tool.called, description: tool.description, parameters: tool.schema },
});

// call runs a tool and returns what it says as text for the model.
export async function call(tool, args, key, signal) {
  let values;
  try {
    values = JSON.parse(args || '{}');
  } catch {
    return 'Error: the arguments are not JSON.';
  }
  const r = await client(tool.server).ask('tools/call', { name: tool.name, arguments: values }, key, signal);
  const parts = (Array.isArray(r?.content) ? r.content : []).map((c) => {
    if (c?.type === 'text') return text(c.text);
    if (c?.type === 'resource') return text(c.resource?.text) || `[${text(c.resource?.uri)}]`;
    return c?.type === 'resource_link' ? `[${text(c.uri)}]` : `[${text(c?.type) || 'something'}, which is not shown]`;
  });
  if (!parts.length && r?.structuredContent) parts.push(JSON.stringify(r.structuredContent));
  const said = parts.join('\n');
  const cut = said.length > longestText ? said.slice(0, longestText) + '\n[The rest is left out.]' : said;
  return r?.isError ? `Error: ${cut}` : cut;
}
