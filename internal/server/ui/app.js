// The page: the conversation that is shown, what is asked, and what surrounds it.

import * as api from './api.js';
import * as compare from './compare.js';
import * as keys from './keys.js';
import * as list from './list.js';
import * as models from './models.js';
import * as settings from './settings.js';
import * as store from './store.js';
import * as toolbox from './toolbox.js';
import { $, button, bytes, count, element, newID } from './dom.js';
import { Answer, running } from './answers.js';
import { Attachments } from './attach.js';
import { choose, cut, endings, newChat, path, put, titleOf } from './thread.js';
import { edit, entry, follow, render } from './log.js';
import { drawSpeed } from './spec.js';

let chat = newChat({}); // the one that is shown
let about = null; // what the server says of the chosen model; null while it is not loaded
let writing = null; // how the answer is shown that is being written here: {draw, end}
let loadsSince = 0; // when the server was first found without a model, 0 when it has one

const chosen = () => models.find($('model').value);
const continues = () => models.continues($('mode').value, about);

// --- what the page says

const say = (text) => { $('status').textContent = text; };

// notice shows what went wrong (kind 'bad') or what can be undone ('good'), until it is answered or something else
// happens.
let noticeTimer = 0;
function notice(text, { label, act, kind = 'bad' } = {}) {
  clearTimeout(noticeTimer);
  $('notice').className = kind;
  $('alert').setAttribute('role', kind === 'bad' ? 'alert' : 'status');
  $('alert').textContent = text;
  $('notice').hidden = !text;
  $('act').hidden = !label;
  $('act').textContent = label ?? '';
  $('act').onclick = () => { notice(''); act(); };
  if (text && kind === 'good') noticeTimer = setTimeout(() => notice(''), 20000);
}

// wait shows what the page waits for, and how far that is if it is known; an empty text hides it.
function wait(text, value) {
  $('waiting').hidden = !text;
  $('waiting-text').textContent = text || '';
  if (value === undefined) $('progress').removeAttribute('value'); else $('progress').value = value;
}

// --- models

async function listModels() {
  try {
    await models.refresh(store.key());
  } catch (err) {
    if (err.status === 503) {
      loadsSince ||= Date.now();
      wait(models.loadingFor(loadsSince));
      setTimeout(listModels, 1000);
      return;
    }
    if (err.status === 401) askKey();
    else notice(err.message, { label: 'Retry', act: listModels });
    return;
  }
  if (loadsSince) wait('');
  loadsSince = 0;
  const { all } = models;
  const want = [chat.settings?.model, $('model').value, store.settings().model,
    all.find((m) => m.state === 'loaded')?.id];
  const label = (m) => (m.state === 'loaded' ? m.id : `${m.id} (${m.state})`);
  $('model').replaceChildren(...all.map((m) => new Option(label(m), m.id)));
  const id = want.find((w) => all.some((m) => m.id === w));
  if (id) $('model').value = id;
  await learn();
}

const idle = { loading: 'The model is loading', unloaded: 'The first message loads the model' };

// learn finds out what the chosen model is for, and how it stands.
async function learn() {
  if (!models.listed) return;
  const m = chosen();
  about = await models.about($('model').value, store.key());
  $('input').placeholder = continues() ? 'Begin a text' : 'Write a message';
  $('facts').replaceChildren(...models.facts(m, about).map(([k, v]) => {
    const row = element('div');
    row.append(element('dt', '', k), element('dd', '', v));
    return row;
  }));
  $('load').hidden = !m || m.state === 'loaded' || m.state === 'loading';
  $('unload').hidden = m?.state !== 'loaded' || models.all.length < 2 || Boolean(m.replicas);
  const server = await models.server(store.key());
  $('open-pull').hidden = !server.pull;
  toolbox.servers(server.mcp);
  const noDrafter = about && !about.speculative.drafter ? 'No drafter is loaded' : '';
  $('headline').dataset.idle = noDrafter || (about ? 'Drafts ready' : idle[m?.state] ?? '');
  settings.hint(about);
  if (!running.has(chat.id)) drawSpeed(null);
  examples();
  measure();
}

async function changeModel(what, act) {
  wait(`${what} ${$('model').value}`);
  try {
    await act();
  } catch (err) {
    notice(err.message);
  }
  wait('');
  await listModels();
}

// pull downloads a model until it is there or the dialog is closed.
let pulling = null;
async function pull() {
  const name = $('pull-name').value.trim();
  if (!name || pulling) return;
  pulling = new AbortController();
  const tell = (text, value) => {
    $('pull-text').textContent = text;
    $('pull-progress').hidden = value === undefined;
    if (value !== undefined) $('pull-progress').value = value;
  };
  $('pull-cancel').textContent = 'Cancel';
  $('pull-start').disabled = true;
  tell('Asking for it…');
  try {
    for await (const news of api.pull(name, store.key(), pulling.signal)) {
      if (news.total) tell(`${bytes(news.completed)} of ${bytes(news.total)}`, news.completed / news.total);
    }
    tell(`${name} is here.`);
    await listModels();
  } catch (err) {
    tell(err.name === 'AbortError' ? 'Cancelled. What was downloaded is kept for the next time.' : err.message);
  }
  pulling = null;
  $('pull-cancel').textContent = 'Close';
  $('pull-start').disabled = false;
}

// --- the key

function askKey(problem = store.key() ? 'The server refused this key.' : 'This server wants an API key.') {
  $('key-note').textContent = `${problem} It is kept until this tab is closed, and sent to this server only.`.trim();
  $('key').setAttribute('aria-invalid', String(problem.includes('refused')));
  if (!$('key-dialog').open) $('key-dialog').showModal();
  $('key').select();
}

// --- conversations

const listed = {
  shown: () => chat.id,
  show: (id) => go(id),
  rename: (id, title) => change(id, (c) => { c.title = title; }),
  pin: async (id) => { await change(id, (c) => { c.pinned = !c.pinned; }); drawList(); },
  remove: removeChat,
};

const drawList = () => list.draw(listed);

// change changes a stored conversation; one that is gone stays so.
async function change(id, fn) {
  const next = await store.change(id, (c) => {
    if (!c) return undefined;
    fn(c);
    return c;
  });
  if (next && id === chat.id) chat = next;
  return next;
}

const address = () => decodeURIComponent(location.hash.slice(1));

// go shows another conversation, with an address of its own; '' is a new one.
function go(id) {
  putAway();
  if (id !== address()) history.pushState(null, '', id ? '#' + id : location.pathname + location.search);
  return show(id);
}

async function show(id) {
  const stored = id ? await store.get(id) : null;
  leave();
  chat = stored ?? newChat(settings.read());
  if (!stored && id) history.replaceState(null, '', location.pathname + location.search);
  list.unread.delete(chat.id);
  if (stored?.settings) settings.fill(stored.settings);
  notice('');
  drawer(null);
  follow.on = true;
  attached.put(aside.get(unsentID()) ?? {});
  aside.delete(unsentID());
  $('input').value = store.unsent(unsentID());
  grow();
  drawTurns();
  drawList();
  $('input').focus();
  await learn();
}

// leave lets go of the answer that is written here; it goes on in the background.
function leave() {
  writing?.end();
  writing = null;
  wait('');
}

async function removeChat(id) {
  const gone = await store.get(id);
  running.get(id)?.abort.abort();
  await store.change(id, () => null);
  if (id === chat.id) await go(''); else drawList();
  notice(`“${gone.title}” is deleted.`, {
    label: 'Undo',
    kind: 'good',
    act: async () => {
      await store.change(id, () => gone);
      go(id);
    },
  });
}

// changedElsewhere shows what another tab did.
async function changedElsewhere(id) {
  drawList();
  if (id !== chat.id || running.has(id)) return;
  const next = await store.get(id);
  if (id !== chat.id || running.has(id)) return;
  if (!next) {
    if (chat.turns.length) go('');
    return;
  }
  chat = next;
  if (!$('log').querySelector('form.edit')) drawTurns();
}

// --- the conversation that is shown

const acts = {
  chat: () => chat,
  look: () => { if (!running.has(chat.id)) drawTurns(); },
  edit: startEdit,
  regenerate(turn) {
    $('input').focus();
    ask({ turns: path(chat, turn.parent), parent: turn.parent, retry: () => acts.regenerate(turn) });
  },
  goOn(turn) {
    $('input').focus();
    ask({ turns: path(chat, turn.parent), turn, retry: () => acts.goOn(turn) });
  },
  async remove(turn) {
    const was = structuredClone(chat);
    await change(chat.id, (c) => { cut(c, turn.id); });
    drawTurns();
    notice('The message is deleted, with what followed it.', {
      label: 'Undo',
      kind: 'good',
      act: async () => {
        await change(was.id, (c) => {
          const here = new Set(c.turns.map((t) => t.id));
          c.turns.push(...was.turns.filter((t) => !here.has(t.id)));
          c.at = was.at;
        });
        if (chat.id === was.id) drawTurns();
      },
    });
  },
  async choose(id) {
    await change(chat.id, (c) => choose(c, id));
    drawTurns();
    $('log').querySelector(`[data-id="${CSS.escape(id)}"] .versions button:not([disabled])`)?.focus();
  },
  results(turn, said) {
    let parent = turn.id;
    const fresh = turn.calls.map((call, i) => {
      const result = { id: newID() + i, parent, role: 'tool', content: said[i], call: call.id };
      if (call.server) Object.assign(result, { name: call.tool, server: call.server });
      parent = result.id;
      return result;
    });
    $('input').focus();
    const retry = () => ask({ turns: [...path(chat, turn.id), ...fresh], fresh, parent, retry });
    retry();
  },
  allow: (tool) => change(chat.id, (c) => { c.allowed = [...c.allowed ?? [], tool]; }),
};

// drawTurns shows the conversation, and the answer that is being written to it here.
function drawTurns() {
  const answer = running.get(chat.id);
  if (writing) leave();
  const turns = answer ? [...answer.turns, answer.turn] : path(chat);
  document.title = chat.title ? `${chat.title} – Strobe` : 'Strobe';
  busy(Boolean(answer));
  render(answer ? answer.turns : turns, acts);
  if (!answer) {
    drawSpeed(null);
    measure();
    return;
  }
  $('welcome').hidden = true;
  const parts = entry(turns, turns.length - 1, acts);
  // A drawing that takes long is made less often.
  let timer = 0;
  let pause = 50;
  const draw = () => {
    const began = performance.now();
    timer = 0;
    follow.scrolled(); // the browser reports it only after this drawing
    parts.draw(false);
    drawSpeed(answer.speed);
    wait(answer.waiting?.text, answer.waiting?.value);
    follow.now();
    pause = Math.max(50, 4 * (performance.now() - began));
  };
  writing = {
    parts,
    end() {
      clearTimeout(timer);
      answer.changed = () => {};
    },
  };
  answer.changed = () => { timer ||= setTimeout(draw, pause); };
  draw();
}

function startEdit(li, turn, text = turn.content) {
  if (running.has(chat.id)) return;
  edit(li, text, (now) => {
    const changed = { ...turn, id: newID(), content: now };
    ask({
      turns: [...path(chat, turn.parent), changed],
      fresh: [changed],
      retry: () => $('log').querySelector('form.edit')?.requestSubmit(),
      restore: () => {
        const again = $('log').querySelector(`[data-id="${CSS.escape(turn.id)}"]`);
        if (again) startEdit(again, turn, now);
      },
    });
  }, drawTurns);
}

// --- asking

// ask asks for the turn after these and writes it as it comes. fresh are those of them that are new. turn is an answer
// to continue. If nothing comes the conversation stays as it was: restore gives back what the person wrote, and retry
// asks again.
async function ask({ turns, fresh = [], turn, parent = turns.at(-1).id, retry, restore }) {
  const { id } = chat;
  if (running.has(id)) return;
  const values = settings.read();
  const bad = settings.problem();
  if (bad) {
    restore?.();
    notice(bad, { label: 'Retry', act: retry });
    return;
  }
  const answer = new Answer({
    chat: id,
    turns,
    turn: turn ? { ...structuredClone(turn), end: '', error: '' } : {
      id: newID(), parent, role: 'assistant', content: '', reasoning: '', calls: [], drafted: [], guessed: [], end: '',
      plain: continues(),
    },
    settings: values,
  });
  running.set(id, answer);
  notice('');
  follow.on = true;
  const was = chat;
  const add = (c) => {
    for (const t of fresh) put(c, t);
    c.title ||= titleOf(turns[0]);
    c.settings = values;
    c.updated = Date.now();
    return c;
  };
  chat = add({ ...was, turns: [...was.turns] });
  if (address() !== id) history.replaceState(null, '', '#' + id);
  drawTurns();
  say('The answer is being written.');
  const stored = await store.change(id, (c) => add(c ?? { ...was, turns: [...was.turns] }));
  if (chat.id === id) chat = stored;
  drawList();
  const err = await answer.run().then(() => null, (e) => e);
  running.delete(id);
  if (err) await failed(err, { id, was, fresh, retry, restore });
  else await finished(answer);
  drawList();
  // Now it is loaded, or what it was is known.
  if (chosen()?.state !== 'loaded' || !about) listModels();
}

async function finished(answer) {
  const next = await store.get(answer.chat);
  if (chat.id !== answer.chat) {
    if (next) list.unread.add(answer.chat);
    return;
  }
  chat = next ?? chat;
  busy(false);
  wait('');
  const { turn } = answer;
  if (writing && !turn.plain) {
    writing.end();
    follow.scrolled();
    writing.parts.draw(true);
    if ($('tint').value === 'fade') writing.parts.fade();
    writing = null;
    drawSpeed(answer.speed);
    follow.now();
  } else {
    drawTurns(); // whether a model continues texts may only now be known
    drawSpeed(answer.speed);
  }
  measure();
  const asked = toolbox.begin(turn, acts);
  const ended = turn.error ? `The answer broke off: ${turn.error}` : endings[turn.end] ?? 'The answer is complete.';
  say(asked || ended);
}

async function failed(err, { id, was, fresh, retry, restore }) {
  // The conversation becomes what it was.
  const next = await store.change(id, (c) => {
    if (!c) return undefined;
    if (fresh.length) cut(c, fresh[0].id);
    c.at = was.at;
    return c.turns.length ? c : null;
  });
  const stopped = err.name === 'AbortError';
  if (chat.id !== id) {
    const lost = fresh.at(-1)?.role === 'user' ? fresh.at(-1).content : '';
    if (stopped || next === undefined) return; // the person wanted it
    if (lost) store.saveUnsent(next ? id : '', lost);
    notice(`An answer failed: ${err.message}`, { label: 'Open', act: () => go(next ? id : '') });
    return;
  }
  chat = next ?? { ...was, turns: [], at: null };
  if (!next) history.replaceState(null, '', location.pathname + location.search);
  drawTurns();
  restore?.();
  if (stopped) say('You stopped the answer.');
  else if (err.status === 401) askKey();
  else notice(err.message, { label: retry && 'Retry', act: retry });
}

function busy(on) {
  $('send').hidden = on;
  $('stop').hidden = !on;
  document.body.classList.toggle('busy', on);
}

function stop() {
  running.get(chat.id)?.abort.abort();
  toolbox.stop(path(chat).at(-1));
}

// --- the message box

const attached = new Attachments({
  notice,
  say,
  sees: () => (about ? about.modalities?.vision ?? false : null),
  plain: continues,
  count: (text) => (about ? api.tokens(chosen().id, text, store.key()) : Promise.reject(new Error('not loaded'))),
  changed: () => measure(),
});

// message takes what the person wrote as a turn, null if there is nothing.
function message() {
  const content = continues() ? $('input').value : $('input').value.trim();
  if (!content.trim() && attached.empty()) return null;
  const turn = { id: newID(), parent: chat.at, role: 'user', content, ...attached.take() };
  if (continues()) turn.plain = true;
  $('input').value = '';
  grow();
  saveUnsent();
  return turn;
}

// giveBack puts a message into the box again, before what was written there since.
function giveBack(turn) {
  attached.put(turn);
  $('input').value = turn.content + ($('input').value ? '\n' + $('input').value : '');
  grow();
  saveUnsent();
  $('input').focus();
}

function send() {
  if (running.has(chat.id)) return;
  const turn = message();
  if (!turn) return;
  ask({ turns: [...path(chat), turn], fresh: [turn], retry: send, restore: () => giveBack(turn) });
}

function startCompare() {
  const bad = settings.problem();
  if (bad) {
    notice(bad);
    return;
  }
  const last = path(chat).findLast((t) => t.role === 'user');
  const turn = message();
  if (turn) giveBack(turn);
  if (!turn && !last) {
    notice('Write a message first: it is answered with and without drafts.', { kind: 'good' });
    $('input').focus();
    return;
  }
  compare.run(turn ? [...path(chat), turn] : path(chat, last.id), settings.read());
}

function grow() {
  const e = $('input');
  e.style.height = 'auto';
  e.style.height = Math.min(e.scrollHeight + 2, innerHeight * 0.35) + 'px';
}

// Text that was not sent is kept for when the conversation is shown again.
const unsentID = () => (chat.turns.length ? chat.id : '');
const aside = new Map(); // files and images, by conversation
const saveUnsent = () => store.saveUnsent(unsentID(), $('input').value);

// putAway keeps what is in the box, before another conversation is shown.
function putAway() {
  saveUnsent();
  if (!attached.empty()) aside.set(unsentID(), attached.take());
}

// measure shows how much of the context the conversation takes, with what is in the box.
let measureTimer = 0;
let measured = { text: '', tokens: 0 };
function measure() {
  const size = about?.default_generation_settings.n_ctx;
  $('context').hidden = !size;
  if (!size) return;
  const used = path(chat).findLast((t) => t.used)?.used ?? 0;
  const text = $('input').value;
  const known = text === measured.text;
  const typed = !text ? 0 : known ? measured.tokens : Math.ceil(text.length / 4); // an estimate until it is counted
  const total = used + typed + attached.tokens();
  $('context-text').textContent = total ? `${count(total)} of ${count(size)} tokens` : '';
  $('context').classList.toggle('full', total > size);
  $('meter').hidden = !total;
  $('meter').max = size;
  $('meter').high = size * 0.9;
  $('meter').value = Math.min(total, size);
  clearTimeout(measureTimer);
  if (text && !known) {
    measureTimer = setTimeout(async () => {
      const tokens = await api.tokens(chosen().id, text, store.key()).catch(() => null);
      if (tokens === null) return;
      measured = { text, tokens };
      measure();
    }, 400);
  }
}

function examples() {
  const texts = continues()
    ? ['// Package queue has a queue of integers.\npackage queue\n\n', 'type Stack[T any] struct {\n\titems []T\n}\n\n',
      'package main\n\nimport (\n\t"fmt"\n\t"net/http"\n)\n\nfunc main() {\n',
      '// Reverse returns s with its runes in reverse order.\nfunc Reverse(s string) string {\n']
    : ['Explain speculative decoding with an everyday comparison.', 'Compare TCP and UDP in a table.',
      'Write a Go function that merges two sorted slices, with a test.',
      'Derive the quadratic formula step by step.'];
  $('examples').className = continues() ? 'mono' : '';
  $('examples').replaceChildren(...texts.map((text) => {
    const li = element('li');
    li.append(button(text.trimEnd(), () => {
      $('input').value = text;
      send();
    }));
    return li;
  }));
}

// --- drawers on narrow screens

function drawer(name) {
  for (const id of ['chats', 'panel']) {
    const on = id === name && !$(id).classList.contains('open');
    $(id).classList.toggle('open', on);
    $('open-' + id).setAttribute('aria-expanded', String(on));
  }
}

$('open-chats').addEventListener('click', () => drawer('chats'));
$('open-panel').addEventListener('click', () => drawer('panel'));
document.querySelector('main').addEventListener('pointerdown', () => drawer(null));

// --- what people do

const touch = matchMedia('(pointer: coarse)'); // Enter has to begin a line there: no other key does
const tellKeys = () => document.body.classList.toggle('touch', touch.matches);
touch.addEventListener('change', tellKeys);

$('form').addEventListener('submit', (e) => { e.preventDefault(); send(); });
$('input').addEventListener('input', () => { grow(); saveUnsent(); measure(); });
$('input').addEventListener('keydown', (e) => {
  if (e.key === 'Enter' && !e.shiftKey && !e.isComposing && !touch.matches) { e.preventDefault(); send(); }
});
$('stop').addEventListener('click', () => { stop(); $('input').focus(); });
$('compare').addEventListener('click', startCompare);
$('new').addEventListener('click', () => go('').then(() => say('A new conversation begins.')));
$('dismiss').addEventListener('click', () => { notice(''); $('input').focus(); });
$('latest').addEventListener('click', () => { follow.on = true; follow.now(); });
$('scroll').addEventListener('scroll', () => follow.scrolled(), { passive: true });
new ResizeObserver(() => follow.now()).observe($('scroll'));

keys.wire({
  search() {
    if (!$('chats').checkVisibility()) drawer('chats');
    $('search').focus();
    $('search').select();
  },
  newChat: () => $('new').click(),
  stop() {
    const open = document.querySelector('.side.open');
    if (open) {
      drawer(null);
      $('open-' + open.id).focus();
    } else {
      stop();
    }
  },
  editLast() {
    const last = path(chat).findLast((t) => t.role === 'user');
    const li = last && $('log').querySelector(`[data-id="${CSS.escape(last.id)}"]`);
    if (!li || running.has(chat.id)) return false;
    startEdit(li, last);
    return true;
  },
});

let searchTimer = 0;
$('search').addEventListener('input', () => {
  clearTimeout(searchTimer);
  searchTimer = setTimeout(() => list.search($('search').value, listed), 150);
});
$('search').addEventListener('keydown', (e) => {
  if (e.key === 'Enter') $('list').querySelector('.chat')?.click();
});
$('export-all').addEventListener('click', list.exportAll);
$('import').addEventListener('change', async () => {
  const [file] = $('import').files;
  if (!file) return;
  const { good, bad } = await list.importFile(file);
  $('import').value = '';
  notice(good ?? bad, { kind: good ? 'good' : 'bad' });
  drawList();
});

for (const id of ['file', 'folder']) {
  $(id).addEventListener('change', async () => {
    await attached.addAll([...$(id).files]);
    $(id).value = '';
  });
}
document.addEventListener('dragover', (e) => {
  if (!e.dataTransfer.types.includes('Files')) return;
  e.preventDefault();
  document.body.classList.add('drop');
});
document.addEventListener('dragleave', (e) => { if (!e.relatedTarget) document.body.classList.remove('drop'); });
document.addEventListener('drop', (e) => {
  document.body.classList.remove('drop');
  if (!e.dataTransfer.files.length) return;
  e.preventDefault();
  attached.drop(e.dataTransfer);
});
$('input').addEventListener('paste', (e) => { if (attached.paste(e.clipboardData)) e.preventDefault(); });
$('lightbox').addEventListener('click', () => $('lightbox').close());

$('open-key').addEventListener('click', () => askKey(''));
$('key-cancel').addEventListener('click', () => $('key-dialog').close());
$('key-form').addEventListener('submit', (e) => {
  e.preventDefault();
  $('key-dialog').close();
  store.saveKey($('key').value);
  notice('');
  listModels();
});

$('load').addEventListener('click', () => changeModel('Loading', () => api.load($('model').value, store.key())));
$('unload').addEventListener('click', () => changeModel('Unloading', () => api.unload($('model').value, store.key())));
$('open-pull').addEventListener('click', () => { $('pull-text').textContent = ''; $('pull-dialog').showModal(); });
$('pull-form').addEventListener('submit', (e) => { e.preventDefault(); pull(); });
$('pull-cancel').addEventListener('click', () => { if (pulling) pulling.abort(); else $('pull-dialog').close(); });
$('pull-dialog').addEventListener('close', () => pulling?.abort());

function settingsChanged() {
  settings.problem();
  settings.keep();
  settings.look();
  const values = settings.read(); // those of this moment
  if (chat.turns.length) change(chat.id, (c) => { c.settings = values; });
}
for (const id of [...settings.fields, 'tint', 'theme']) $(id).addEventListener('change', settingsChanged);
for (const id of ['model', 'mode']) $(id).addEventListener('change', learn);
settings.presets(() => { settingsChanged(); learn(); });
$('speed').addEventListener('toggle', settings.keep);
document.addEventListener('click', (e) => { if (e.target.matches?.('.wrapper')) settings.keep(); });
compare.wire();

addEventListener('popstate', () => { putAway(); show(address()); });
addEventListener('pagehide', saveUnsent);
store.watch(changedElsewhere, notice);

settings.restore();
tellKeys();
await show(address());
listModels();
