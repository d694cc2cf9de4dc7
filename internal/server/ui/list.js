// The list of conversations: search, pins, names, files.

import * as store from './store.js';
import { $, button, download, element } from './dom.js';
import { running } from './answers.js';
import { markdown, readChat, textOf } from './thread.js';

export const unread = new Set(); // conversations that were answered in the background

let order = 0; // the latest drawing; one that waited longer is dropped
let found = null; // ids of conversations with the wanted words, null for all

const day = (ms) => new Date(ms).setHours(0, 0, 0, 0);

// when groups conversations as people remember them.
function when(c) {
  if (c.pinned) return 'Pinned';
  const days = Math.round((day(Date.now()) - day(c.updated)) / 86400000);
  if (days < 1) return 'Today';
  if (days < 2) return 'Yesterday';
  if (days < 7) return 'This week';
  return new Date(c.updated).toLocaleDateString('en', { month: 'long', year: 'numeric' });
}

// draw lists the conversations. env: {shown() (the id), show(id), rename(id, title), pin(id), remove(id)}
export async function draw(env) {
  const mine = ++order;
  const heads = (await store.heads()).filter((c) => !found || found.has(c.id));
  if (mine !== order) return;
  const focused = document.activeElement?.closest?.('#list .chat')?.dataset.id;
  let group = '';
  const items = [];
  for (const c of heads) {
    if (when(c) !== group) {
      group = when(c);
      items.push(element('li', 'group', group));
    }
    items.push(item(c, env));
  }
  if (!items.length && found) items.push(element('li', 'group', 'No conversation has these words.'));
  $('list').replaceChildren(...items);
  if (focused) $('list').querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
}

function item(c, env) {
  const li = element('li');
  const open = button(c.title || 'Conversation', () => env.show(c.id), 'chat');
  open.dataset.id = c.id;
  open.title = new Date(c.updated).toLocaleString();
  const mark = running.has(c.id) ? 'writing' : unread.has(c.id) ? 'new' : '';
  if (mark) {
    open.classList.add('marked');
    open.setAttribute('aria-description', mark === 'new' ? 'A new answer is there' : 'An answer is being written');
    open.classList.add(mark);
  }
  li.append(open);
  if (c.id === env.shown()) {
    open.setAttribute('aria-current', 'true');
    const acts = element('div', 'acts');
    acts.append(button('Rename', () => rename(li, c, env)), button(c.pinned ? 'Unpin' : 'Pin', () => env.pin(c.id)),
      button('Export', async () => exportOne(await store.get(c.id), 'md')),
      button('JSON', async () => exportOne(await store.get(c.id), 'json')), button('Delete', () => env.remove(c.id)));
    li.append(acts);
  }
  return li;
}

function rename(li, c, env) {
  const form = element('form', 'rename');
  const input = element('input');
  input.value = c.title;
  input.setAttribute('aria-label', 'New name');
  const done = async (title) => {
    if (title) await env.rename(c.id, title);
    await draw(env);
    $('list').querySelector('[aria-current]')?.focus();
  };
  form.addEventListener('submit', (e) => { e.preventDefault(); done(input.value.trim()); });
  input.addEventListener('keydown', (e) => { if (e.key === 'Escape') { e.stopPropagation(); done(''); } });
  form.append(input, element('button', '', 'Save'));
  li.replaceChildren(form);
  input.select();
}

// search limits the list to conversations with all of these words, in the title or in a message.
export async function search(words, env) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) {
    found = null;
  } else {
    const has = (c) => {
      const text = [c.title, ...c.turns.map(textOf)].join('\n').toLowerCase();
      return wanted.every((w) => text.includes(w));
    };
    found = new Set((await store.all()).filter(has).map((c) => c.id));
  }
  await draw(env);
}

const file = (chats) => JSON.stringify({ strobe: 1, chats }, null, 1);

function exportOne(chat, kind) {
  if (!chat) return;
  if (kind === 'md') download(chat.title, '.md', 'text/markdown', markdown(chat));
  else download(chat.title, '.json', 'application/json', file([chat]));
}

export async function exportAll() {
  download('Strobe conversations', '.json', 'application/json', file(await store.all()));
}

// importFile adds the conversations of a file that was exported; of one that is here already the newer stays. It
// returns what to say.
export async function importFile(f) {
  let chats;
  try {
    chats = JSON.parse(await f.text()).chats.map(readChat).filter(Boolean);
  } catch {
    chats = [];
  }
  if (!chats.length) return { bad: `${f.name} has no conversations of this page.` };
  for (const c of chats) {
    await store.change(c.id, (here) => (here && here.updated >= c.updated ? undefined : c));
  }
  return { good: `${chats.length} conversation${chats.length === 1 ? '' : 's'} read from ${f.name}.` };
}

