// What stays in this browser: settings and conversations, each under a key of its own, so that two tabs do not
// overwrite each other's. The API key stays only as long as the tab is open.

const prefix = 'strobe-chat-';

// A browser may forbid storage, or have no room: load then finds nothing, and save says why.
function load(storage, key) {
  try {
    return JSON.parse(storage().getItem(key));
  } catch {
    return null;
  }
}

function save(storage, key, value) {
  try {
    storage().setItem(key, JSON.stringify(value));
    return '';
  } catch (err) {
    return err.name === 'QuotaExceededError'
      ? 'This browser has no more room for conversations: export some and delete them.'
      : 'This browser keeps nothing: the conversation ends with the page.';
  }
}

const local = () => localStorage;
const tab = () => sessionStorage;

export const settings = () => load(local, 'strobe') ?? {};
export const saveSettings = (values) => save(local, 'strobe', values);
export const key = () => load(tab, 'strobe-key') ?? '';
export const saveKey = (value) => save(tab, 'strobe-key', value);

export function newChat() {
  const id = Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
  return { id, title: '', updated: 0, turns: [] };
}

// chats lists the conversations, newest first.
export function chats() {
  let keys = [];
  try {
    keys = Object.keys(localStorage).filter((k) => k.startsWith(prefix));
  } catch { /* forbidden */ }
  const all = keys.map((k) => load(local, k)).filter((c) => c?.id && Array.isArray(c.turns));
  return all.sort((a, b) => b.updated - a.updated);
}

export const saveChat = (chat) => save(local, prefix + chat.id, chat);

export function removeChat(chat) {
  try {
    localStorage.removeItem(prefix + chat.id);
  } catch { /* forbidden */ }
}

// markdown is a conversation as a file people can read.
export function markdown(chat) {
  const parts = [`# ${chat.title || 'Conversation'}`];
  for (const t of chat.turns) {
    parts.push({ user: '## You', assistant: '## Answer', tool: '## Tool result' }[t.role]);
    if (t.reasoning) parts.push(t.reasoning.trim().replace(/^/gm, '> '));
    for (const image of t.images ?? []) parts.push(`[image: ${image.name}]`);
    if (t.content) parts.push(t.content.trim());
    for (const c of t.calls ?? []) parts.push(`Calls ${c.name}:`, '```json\n' + c.arguments + '\n```');
  }
  return parts.join('\n\n') + '\n';
}
