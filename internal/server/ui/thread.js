// A conversation: a tree of turns; the page shows one path of it. Asking again and editing add a branch, so nothing is
// overwritten.
//
// chat: {id, title, updated, pinned, settings, turns, at}; turns are in the order in which they were added, and at is
// the last turn of the path that is shown.
// turn: {id, parent, role, content}; of a user also images, files and plain; of an answer reasoning, calls, drafted and
// guessed (runs of drafted text), speed, used, thought, end, error, plain; of a tool's result call, name and server. A
// call of an MCP server has that server and the tool's own name there. Which of them always may run (chat.allowed) is
// not read from files: only the person says so.

import { newID } from './dom.js';

export const newChat = (settings) => ({
  id: newID(), title: '', updated: Date.now(), pinned: false, settings, turns: [], at: null,
});

// path lists the turns from the first one to the one with this id.
export function path(chat, id = chat.at) {
  const byID = new Map(chat.turns.map((t) => [t.id, t]));
  const out = [];
  for (let t = byID.get(id); t && out.length <= chat.turns.length; t = byID.get(t.parent)) out.unshift(t);
  return out;
}

// versions lists the turns that stand at the same place.
export const versions = (chat, turn) => chat.turns.filter((t) => t.parent === turn.parent && t.role === turn.role);

// choose shows the path through a turn, down to its newest end.
export function choose(chat, id) {
  const at = chat.turns.findIndex((t) => t.id === id);
  if (at < 0) return;
  chat.at = id;
  // Children come after their parents, so one pass finds the newest descendant.
  const below = new Set([id]);
  for (const t of chat.turns.slice(at + 1)) {
    if (!below.has(t.parent)) continue;
    below.add(t.id);
    chat.at = t.id;
  }
}

// put adds a turn at the end of the path, or replaces it if it is there already.
export function put(chat, turn) {
  const i = chat.turns.findIndex((t) => t.id === turn.id);
  if (i >= 0) {
    chat.turns[i] = turn;
    return;
  }
  chat.turns.push(turn);
  chat.at = turn.id;
}

// cut removes a turn with all that follows it. Another version of it is shown instead, if there is one.
export function cut(chat, id) {
  const turn = chat.turns.find((t) => t.id === id);
  if (!turn) return;
  const gone = new Set([id]);
  for (const t of chat.turns) if (gone.has(t.parent)) gone.add(t.id);
  chat.turns = chat.turns.filter((t) => !gone.has(t.id));
  if (gone.has(chat.at)) {
    chat.at = turn.parent;
    const other = versions(chat, turn).at(-1);
    if (other) choose(chat, other.id);
  }
}

// titleOf is a name for a conversation that has none yet.
export function titleOf(turn) {
  return (turn.content.trim() || turn.files?.[0]?.name || 'Image').replace(/\s+/g, ' ').slice(0, 60);
}

// fence puts a file into a text, so that the model sees where it ends.
function fence(file) {
  let marks = '```';
  while (file.text.includes(marks)) marks += '`';
  return `${file.name}:\n${marks}\n${file.text.replace(/\n?$/, '\n')}${marks}\n`;
}

// textOf is all a turn says, with its files.
export function textOf(turn) {
  if (!turn.files?.length) return turn.content;
  if (turn.plain) return turn.files.map((f) => f.text).join('\n') + turn.content;
  return turn.files.map(fence).join('\n') + (turn.content ? '\n' + turn.content : '');
}

// markdown is the shown path as a file that people can read.
export function markdown(chat) {
  const parts = [`# ${chat.title || 'Conversation'}`];
  for (const t of path(chat)) {
    parts.push({ user: '## You', assistant: '## Answer', tool: '## Tool result' }[t.role]);
    if (t.reasoning) parts.push(t.reasoning.trim().replace(/^/gm, '> '));
    for (const image of t.images ?? []) parts.push(`[image: ${image.name}]`);
    const text = textOf(t).trim();
    if (text) parts.push(text);
    for (const c of t.calls ?? []) parts.push(`Calls ${c.name}:`, '```json\n' + c.arguments + '\n```');
  }
  return parts.join('\n\n') + '\n';
}

const text = (x) => (typeof x === 'string' ? x : '');
const number = (x) => (Number.isFinite(x) ? x : 0);
const list = (x, fn) => (Array.isArray(x) ? x.filter((v) => v && typeof v === 'object').map(fn) : []);
const runs = (x) => (Array.isArray(x) ? x.map(number) : []);

// readTurn takes what is known of a turn out of a file, with the right types; anything else is left behind.
function readTurn(t) {
  const turn = { id: text(t.id), parent: text(t.parent) || null, role: text(t.role), content: text(t.content) };
  if (t.plain) turn.plain = true;
  if (turn.role === 'tool') Object.assign(turn, { call: text(t.call), name: text(t.name), server: text(t.server) });
  if (turn.role === 'user') {
    turn.images = list(t.images, (x) => ({ url: text(x.url), name: text(x.name) }))
      .filter((x) => /^data:image\/(png|jpeg|gif|webp|bmp)[;,]/.test(x.url));
    turn.files = list(t.files, (x) => ({ name: text(x.name), text: text(x.text) }));
  }
  if (turn.role === 'assistant') {
    Object.assign(turn, {
      reasoning: text(t.reasoning), end: text(t.end) || 'stopped', drafted: runs(t.drafted), guessed: runs(t.guessed),
      calls: list(t.calls, (c) => ({ id: text(c.id), name: text(c.name), arguments: text(c.arguments) })),
      thought: number(t.thought), used: number(t.used),
    });
    if (t.error) turn.error = text(t.error);
    if (t.speed && typeof t.speed === 'object') {
      turn.speed = { off: text(t.speed.off) };
      for (const k of ['tokens', 'accepted', 'passes', 'ms', 'rate', 'plain', 'idle', 'read', 'seen']) {
        turn.speed[k] = number(t.speed[k]);
      }
    }
  }
  return turn;
}

// readChat takes a conversation out of a file or an older version's storage, null if it is none. Older versions had a
// list of turns without branches.
export function readChat(c) {
  if (!c || typeof c !== 'object' || !text(c.id) || !Array.isArray(c.turns)) return null;
  const chat = {
    id: c.id,
    title: text(c.title),
    updated: number(c.updated) || Date.now(),
    pinned: Boolean(c.pinned),
    turns: [],
    at: null,
  };
  if (c.settings && typeof c.settings === 'object') {
    chat.settings = {};
    for (const [k, v] of Object.entries(c.settings)) if (typeof v === 'string') chat.settings[k] = v;
  }
  const flat = !('at' in c);
  const known = new Set();
  for (const t of list(c.turns, readTurn)) {
    if (!['user', 'assistant', 'tool'].includes(t.role)) continue;
    if (flat) {
      t.id = newID();
      t.parent = chat.at;
    }
    // A parent comes before its children: so there are no circles.
    if (!t.id || known.has(t.id) || (t.parent && !known.has(t.parent))) continue;
    known.add(t.id);
    chat.turns.push(t);
    chat.at = t.id;
  }
  if (known.has(c.at)) chat.at = c.at;
  chat.title ||= chat.turns.length ? titleOf(chat.turns[0]) : '';
  return chat.turns.length ? chat : null;
}

// endings say why an answer is not complete.
export const endings = {
  length: 'The answer reached its longest length.', stopped: 'You stopped the answer.', left: 'The page was closed.',
};
