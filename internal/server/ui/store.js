// What stays in this browser. Conversations lie in IndexedDB: every change reads and writes a conversation within one
// transaction, so two tabs lose nothing of each other's. Settings and text that was not sent lie in localStorage. The
// API key stays only as long as the tab is open.

import { readChat } from './thread.js';

const noRoom = 'This browser has no more room for conversations: export some and delete them.';
const keepsNothing = 'This browser keeps nothing: the conversations end with the page.';

// --- small values

function load(storage, key) {
  try {
    return JSON.parse(storage().getItem(key));
  } catch {
    return null; // forbidden, or written by something else
  }
}

function save(storage, key, value) {
  try {
    if (value === null) storage().removeItem(key); else storage().setItem(key, JSON.stringify(value));
  } catch { /* forbidden or full: the page works without */ }
}

const local = () => localStorage;
const tab = () => sessionStorage;

export const settings = () => load(local, 'strobe') ?? {};
export const saveSettings = (values) => save(local, 'strobe', values);
export const presets = () => load(local, 'strobe-presets') ?? {};
export const savePresets = (values) => save(local, 'strobe-presets', values);
export const key = () => load(tab, 'strobe-key') ?? '';
export const saveKey = (value) => save(tab, 'strobe-key', value);

export function tabName(make) {
  const name = load(tab, 'strobe-tab') ?? make();
  save(tab, 'strobe-tab', name);
  return name;
}

// unsent is the text in the message box of a conversation; that of a new one has the id ''.
export const unsent = (id) => load(local, 'strobe-unsent-' + id) ?? '';
export const saveUnsent = (id, text) => save(local, 'strobe-unsent-' + id, text || null);

// --- conversations

const done = (request) => new Promise((ok, fail) => {
  request.onsuccess = () => ok(request.result);
  request.onerror = () => fail(request.error);
});

const ended = (tx) => new Promise((ok, fail) => {
  tx.oncomplete = () => ok();
  tx.onabort = () => fail(tx.error ?? new Error('aborted'));
});

const head = (c) => ({ id: c.id, title: c.title, updated: c.updated, pinned: c.pinned, turns: c.turns.length });

let warn = () => {}; // shows a problem
let memory = null; // a Map instead of a database, where the browser forbids that
let database = null; // a promise

// open opens the database and moves the conversations of older versions into it.
function open() {
  database ??= (async () => {
    let db;
    try {
      const request = indexedDB.open('strobe', 1);
      request.onupgradeneeded = () => {
        request.result.createObjectStore('chats', { keyPath: 'id' });
        request.result.createObjectStore('heads', { keyPath: 'id' }); // for the list, without the turns
      };
      db = await done(request);
    } catch {
      memory = new Map();
      warn(keepsNothing);
      return null;
    }
    db.onversionchange = () => db.close();
    await migrate(db);
    return db;
  })();
  return database;
}

async function migrate(db) {
  const prefix = 'strobe-chat-';
  let keys = [];
  try {
    keys = Object.keys(localStorage).filter((k) => k.startsWith(prefix));
  } catch { /* forbidden */ }
  if (!keys.length) return;
  const tx = db.transaction(['chats', 'heads'], 'readwrite');
  for (const k of keys) {
    const chat = readChat(load(local, k));
    if (!chat || await done(tx.objectStore('chats').count(chat.id))) continue; // another tab was here before
    tx.objectStore('chats').put(chat);
    tx.objectStore('heads').put(head(chat));
  }
  try {
    await ended(tx);
    for (const k of keys) localStorage.removeItem(k);
  } catch {
    warn(noRoom);
  }
}

const others = globalThis.BroadcastChannel ? new BroadcastChannel('strobe') : null;

// watch calls changed(id) after another tab changed a conversation, and problem with what goes wrong.
export function watch(changed, problem) {
  warn = problem;
  if (others) others.onmessage = (e) => changed(e.data);
}

// heads lists the conversations without their turns, newest first.
export async function heads() {
  const db = await open();
  const all = db ? await done(db.transaction('heads').objectStore('heads').getAll()) : [...memory.values()].map(head);
  return all.sort((a, b) => b.pinned - a.pinned || b.updated - a.updated);
}

export async function get(id) {
  const db = await open();
  return (db ? await done(db.transaction('chats').objectStore('chats').get(id)) : memory.get(id)) ?? null;
}

// all lists the conversations with their turns.
export async function all() {
  const db = await open();
  return db ? done(db.transaction('chats').objectStore('chats').getAll()) : [...memory.values()];
}

// change calls fn with a conversation, null if there is none, and stores what it returns; null removes it, and
// undefined leaves it alone. fn must not wait for anything.
export async function change(id, fn) {
  const db = await open();
  if (!db) {
    const next = fn(memory.get(id) ?? null);
    if (next === null) memory.delete(id); else if (next) memory.set(id, next);
    return next;
  }
  let next;
  try {
    const tx = db.transaction(['chats', 'heads'], 'readwrite');
    const end = ended(tx);
    next = fn(await done(tx.objectStore('chats').get(id)) ?? null);
    if (next === null) {
      tx.objectStore('chats').delete(id);
      tx.objectStore('heads').delete(id);
    } else if (next) {
      tx.objectStore('chats').put(next);
      tx.objectStore('heads').put(head(next));
    }
    await end;
  } catch (err) {
    if (!(err instanceof DOMException)) throw err;
    warn(err.name === 'QuotaExceededError' ? noRoom : keepsNothing);
    return next;
  }
  others?.postMessage(id);
  return next;
}
