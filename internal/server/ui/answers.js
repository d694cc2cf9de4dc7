// Answers that are being written. They go on in the background when another conversation is shown.

import * as api from './api.js';
import * as mcp from './mcp.js';
import * as models from './models.js';
import * as store from './store.js';
import { ownTools, request } from './request.js';
import { newID } from './dom.js';
import { grow } from './prose.js';
import { Speed } from './spec.js';
import { put } from './thread.js';

export const running = new Map(); // by the conversation's id

const storeEvery = 2000; // ms

// tab is this tab's name, also after the page was loaded again: an unfinished answer of this name is written no more.
export const tab = store.tabName(newID);

// take adds a chunk of the server's stream to a turn. A server without spans, such as one behind this one, sends deltas
// only.
export function take(chunk, turn, speed) {
  const delta = chunk.choices?.[0]?.delta;
  let spans = chunk.strobe?.spans;
  if (!spans) {
    spans = [];
    if (delta?.reasoning_content) spans.push({ kind: 'reasoning', text: delta.reasoning_content });
    const text = delta?.content ?? chunk.choices?.[0]?.text;
    if (text) spans.push({ kind: 'content', text });
  }
  for (const s of spans) {
    const [field, runs] = s.kind === 'reasoning' ? ['reasoning', 'guessed'] : ['content', 'drafted'];
    grow(turn, field, runs, s.text, Boolean(s.drafted));
  }
  for (const c of delta?.tool_calls ?? []) {
    const call = (turn.calls[c.index ?? 0] ??= { id: '', name: '', arguments: '' });
    call.id ||= c.id ?? '';
    call.name ||= c.function?.name ?? '';
    call.arguments += c.function?.arguments ?? '';
  }
  speed.take(chunk.strobe?.drafted ?? []);
  if (chunk.timings) speed.timings(chunk.timings);
  if (chunk.usage) speed.usage(chunk.usage);
  turn.end = chunk.choices?.[0]?.finish_reason ?? turn.end;
}

// Answer is one of them. Its run ends when the answer does.
export class Answer {
  // turns come before the answer; turn is a new one, or one that is continued, which then begins with what it has.
  constructor({ chat, turns, turn, settings }) {
    Object.assign(this, { chat, turns, turn, settings });
    this.abort = new AbortController();
    this.speed = new Speed(settings.draft === 'off' ? 'Drafting is off' : '', settings.model);
    this.waiting = null; // {text, value} while nothing is written
    this.began = false; // something was written
    this.changed = () => {}; // set by what shows the answer
  }

  wait(text, value) {
    this.waiting = text ? { text, value } : null;
    this.changed();
  }

  // run asks and writes. It fails only if nothing was written; the conversation has no answer then.
  async run() {
    const { turn } = this;
    const since = Date.now();
    const key = store.key();
    // Until the server says something, the page says how long it waits.
    let timer = setInterval(() => this.wait(models.waitingFor(this.settings.model, since)), 1000);
    const quiet = () => { clearInterval(timer); timer = 0; };
    let stored = 0;
    let thinking = 0;
    try {
      const about = await models.ready(this.settings.model, key, this.abort.signal);
      this.plain = turn.plain = models.continues(this.settings.mode, about);
      if (!this.speed.off && about && !about.speculative.drafter) this.speed.off = 'No drafter is loaded';
      const own = this.plain ? [] : ownTools(this.settings);
      const others = this.plain ? [] : await mcp.used(this.settings, own.map((t) => t?.function?.name), key,
        this.abort.signal);
      this.tools = others;
      const tools = [...own, ...others.map(mcp.definition)];
      const before = turn.content ? [...this.turns, { ...turn }] : this.turns;
      const [path, req] = request(before, this.settings, this.plain, tools);
      for await (const chunk of api.stream(path, req, key, this.abort.signal)) {
        if (chunk.prompt_progress) {
          quiet();
          const { processed, total } = chunk.prompt_progress;
          this.wait(total > processed && `Reading: ${processed} of ${total} tokens`, processed / total);
        }
        const had = turn.content.length + turn.reasoning.length + turn.calls.length;
        take(chunk, turn, this.speed);
        if (turn.content.length + turn.reasoning.length + turn.calls.length > had || turn.end) this.began = true;
        if (turn.reasoning) thinking ||= Date.now();
        const thought = turn.content || turn.calls.length || turn.end;
        if (thinking && !turn.thought && thought) turn.thought = Date.now() - thinking;
        if (!this.began) continue;
        if (timer) quiet();
        if (this.waiting) this.wait('');
        if (Date.now() - stored > storeEvery) {
          stored = Date.now();
          await this.store();
        }
        this.changed();
      }
    } catch (err) {
      if (!this.began) throw err;
      turn.end = 'stopped';
      if (err.name !== 'AbortError') turn.error = err.message;
    } finally {
      quiet();
      this.waiting = null;
    }
    turn.end ||= 'stop';
    for (const call of turn.calls) {
      const tool = this.tools?.find((t) => t.called === call.name);
      if (tool) Object.assign(call, { server: tool.server, tool: tool.name });
    }
    this.speed.done = true;
    if (this.speed.tokens) turn.speed = this.speed.record();
    if (this.speed.used) turn.used = this.speed.used;
    await this.store();
  }

  // store keeps what is written so far, unless the conversation was deleted.
  store() {
    const turn = { ...this.turn, saved: Date.now(), writer: tab };
    return store.change(this.chat, (chat) => {
      if (!chat || (turn.parent && !chat.turns.some((t) => t.id === turn.parent))) return undefined;
      put(chat, turn);
      chat.updated = Date.now();
      if (turn.plain) for (const t of chat.turns) if (t.id === turn.parent) t.plain = true;
      return chat;
    });
  }
}
