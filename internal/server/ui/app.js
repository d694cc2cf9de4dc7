// The page: conversations, the one that is shown, and what surrounds it.

import * as api from './api.js';
import * as store from './store.js';
import { Waiting, content as contentOf, thumbnail } from './images.js';
import { Prose, button, copyButton, element, forgetMarks } from './prose.js';
import { Panel, details, verdict } from './spec.js';

const $ = (id) => document.getElementById(id);
const numbers = ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed'];
const fields = ['mode', 'system', ...numbers, 'thinking', 'draft', 'tools', 'tint'];
const panel = new Panel();
let chat = store.newChat(); // the one that is shown: {id, title, updated, turns}
let work = null; // the answer being written: {abort, done}
let models = [];
let loadsSince = 0; // when the server was first found without a model, 0 when it has one
let noDrafter = ''; // or a sentence that says so
let plainText = false; // the model has no chat template: it continues texts
let sees = null; // the model reads images; null while that is not known
const pending = new Waiting($('images')); // images for the next message

// --- settings

function restoreSettings() {
  const saved = store.settings();
  for (const id of fields) {
    if (!(id in saved)) continue;
    if (id === 'tint') $(id).checked = saved[id]; else $(id).value = saved[id];
  }
  $('key').value = store.key();
}

function saveSettings() {
  const saved = { model: $('model').value };
  for (const id of fields) saved[id] = id === 'tint' ? $(id).checked : $(id).value;
  store.saveSettings(saved);
}

const continues = () => ($('mode').value || (plainText ? 'text' : 'chat')) === 'text';

// --- what the page says

const say = (text) => { $('status').textContent = text; };

// notice shows what went wrong, or what can be undone, until it is answered.
function notice(text, label, act) {
  $('alert').textContent = text;
  $('notice').hidden = !text;
  $('act').hidden = !label;
  $('act').textContent = label ?? '';
  $('act').onclick = () => { notice(''); act(); };
}

// --- models

async function listModels() {
  try {
    models = await api.models($('key').value);
  } catch (err) {
    if (err.status === 503) {
      loadsSince ||= Date.now();
      wait(`The server is loading its model: ${secondsSince(loadsSince)} s`);
      setTimeout(listModels, 1000);
      return;
    }
    if (err.status === 401) askKey('This server wants an API key.');
    else notice(err.message, 'Retry', listModels);
    return;
  }
  if (loadsSince) wait('');
  loadsSince = 0;
  const want = $('model').value || store.settings().model;
  const label = (m) => (m.state === 'loaded' ? m.id : `${m.id} (${m.state})`);
  $('model').replaceChildren(...models.map((m) => new Option(label(m), m.id)));
  if (models.some((m) => m.id === want)) $('model').value = want;
  await learn();
}

function size(bytes) {
  if (bytes >= 1e9) return (bytes / 1e9).toFixed(1) + ' GB';
  return bytes >= 1e6 ? Math.round(bytes / 1e6) + ' MB' : Math.ceil(bytes / 1e3) + ' kB';
}

const idle = { loading: 'The model is loading', unloaded: 'The first message loads the model' };
const chosen = () => models.find((m) => m.id === $('model').value);

// learn finds out what the chosen model is for, and how it stands.
async function learn() {
  const m = chosen();
  const p = m?.state === 'loaded' ? await api.props(m.id, $('key').value) : null;
  plainText = p?.chat_template_caps.fallback ?? false;
  sees = p ? p.modalities?.vision ?? false : null;
  $('input').placeholder = continues() ? 'Begin a text' : 'Write a message';
  const facts = [['State', m ? m.error || m.state : 'none']];
  if (m?.arch) facts.push(['Kind', m.arch]);
  if (p) {
    const context = p.default_generation_settings.n_ctx;
    const cache = p.runtime.cache_bytes_per_token * context + p.runtime.cache_bytes_per_sequence;
    facts.push(['Device', p.runtime.backend], ['Memory', size(p.model.size) + ' of weights'],
      ['Drafter', p.speculative.drafter ? `${p.speculative.drafters.join(', ')}, ${size(p.speculative.size)}` : 'none'],
      ['Context', `${context} tokens, ${size(cache)} when full`]);
  } else if (m?.size) {
    facts.push(['Size', size(m.size)], ['Context', `${m.context_length} tokens`]);
  }
  $('facts').replaceChildren(...facts.map(([k, v]) => {
    const row = element('div');
    row.append(element('dt', '', k), element('dd', '', v));
    return row;
  }));
  noDrafter = p && !p.speculative.drafter ? 'No drafter is loaded' : '';
  $('headline').dataset.idle = noDrafter || (p ? 'Drafts ready' : idle[m?.state] ?? '');
  if (!work) panel.draw();
  examples();
}

// wait shows what the page waits for, and how far that is if it is known; an empty text hides it.
function wait(text, value) {
  $('waiting').hidden = !text;
  $('waiting-text').textContent = text;
  if (value === undefined) $('progress').removeAttribute('value'); else $('progress').value = value;
}

const secondsSince = (ms) => Math.round((Date.now() - ms) / 1000);

// watch tells what the server does until the answer begins.
function watch() {
  const began = Date.now();
  let ended = false;
  const timer = setInterval(async () => {
    models = await api.models($('key').value).catch(() => models);
    if (ended) return;
    const m = chosen();
    const what = m?.state === 'loading' ? `Loading ${m.id}, ${size(m.size)}` : 'Waiting for the model';
    wait(`${what}: ${secondsSince(began)} s`);
  }, 1000);
  return {
    prompt(p) {
      clearInterval(timer);
      wait(p.total > p.processed ? `Reading: ${p.processed} of ${p.total} tokens` : '', p.processed / p.total);
    },
    end() {
      ended = true;
      clearInterval(timer);
      wait('');
    },
  };
}

// --- the key

function askKey(why) {
  $('key-note').textContent = `${why} It is kept until this tab is closed, and sent to this server only.`.trim();
  if (!$('key-dialog').open) $('key-dialog').showModal();
  $('key').select();
}

// --- conversations

function save() {
  chat.updated = Date.now();
  const problem = store.saveChat(chat);
  if (problem) notice(problem);
  list();
}

function list() {
  const all = store.chats();
  $('list').replaceChildren(...all.map((c) => {
    const li = element('li');
    const open = button(c.title || 'Conversation', () => show(c));
    open.className = 'chat';
    li.append(open);
    if (c.id === chat.id) {
      open.setAttribute('aria-current', 'true');
      const acts = element('div', 'acts');
      acts.append(button('Rename', () => rename(li)), button('Export', exportChat), button('Delete', remove));
      li.append(acts);
    }
    return li;
  }));
}

// halt ends the answer that is being written, if one is; what came of it is kept.
async function halt() {
  work?.abort.abort();
  await work?.done;
}

async function show(other) {
  await halt();
  chat = other;
  for (const t of chat.turns) if (t.role === 'assistant') t.end ||= 'stopped'; // with the page, while it was written
  notice('');
  drawer(null);
  follow.on = true;
  panel.begin('');
  panel.draw();
  render();
  list();
  $('input').focus();
}

function rename(li) {
  const form = element('form', 'rename');
  const input = element('input');
  input.value = chat.title;
  input.setAttribute('aria-label', 'New name');
  const done = (keep) => {
    if (keep && input.value.trim()) {
      chat.title = input.value.trim();
      save();
    } else {
      list();
    }
    $('list').querySelector('[aria-current]')?.focus();
  };
  form.addEventListener('submit', (e) => { e.preventDefault(); done(true); });
  input.addEventListener('keydown', (e) => { if (e.key === 'Escape') { e.stopPropagation(); done(false); } });
  const ok = element('button', '', 'Save');
  form.append(input, ok);
  li.replaceChildren(form);
  input.select();
}

function exportChat() {
  const a = element('a');
  a.href = URL.createObjectURL(new Blob([store.markdown(chat)], { type: 'text/markdown' }));
  a.download = (chat.title.replace(/[^\p{L}\p{N} _-]+/gu, '').trim().slice(0, 60) || 'conversation') + '.md';
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 10000);
  say('Exported.');
}

async function remove() {
  await halt();
  const gone = chat;
  store.removeChat(gone);
  await show(store.newChat());
  notice(`“${gone.title}” is deleted.`, 'Undo', () => {
    store.saveChat(gone);
    show(gone);
  });
}

// --- the conversation that is shown

// render shows these turns; those of a question that is being asked are not part of the conversation yet.
function render(turns = chat.turns) {
  forgetMarks();
  $('log').replaceChildren();
  turns.forEach((turn, i) => entry(turn, i, i === turns.length - 1));
  $('welcome').hidden = turns.length > 0;
  follow.now();
}

// asks marks a button that begins an answer: there is none while another answer is written.
function asks(b) {
  b.classList.add('asks');
  return b;
}

const names = { user: 'You', assistant: 'Answer', tool: 'Tool result' };

// entry adds a turn to the log and returns the parts an answer is written into.
function entry(turn, i, last) {
  const li = element('li', turn.role);
  li.append(element('h2', 'who', names[turn.role]));
  $('log').append(li);
  const acts = element('div', 'acts');
  if (turn.role !== 'assistant') {
    const text = element('div', 'text plain', turn.content);
    text.tabIndex = 0; // a long one scrolls
    if (turn.images?.length) {
      const pictures = element('div', 'pictures');
      pictures.append(...turn.images.map((image) => thumbnail(image.url, image.name)));
      li.append(pictures);
    }
    li.append(text, acts);
    if (turn.role === 'user') {
      acts.append(asks(button('Edit', () => edit(li, turn, i))), copyButton(() => turn.content));
    }
    return null;
  }
  const thoughts = element('details', 'thoughts');
  const title = thoughts.appendChild(element('summary'));
  const reasoning = thoughts.appendChild(element('div', 'text'));
  const text = element('div', 'text');
  const calls = element('div', 'calls');
  li.append(thoughts, text, calls, acts);
  const parts = {
    li,
    acts,
    reasoning: new Prose(reasoning, { text: turn.reasoning, drafted: turn.guessed }),
    text: new Prose(text, { text: turn.content, drafted: turn.drafted, plain: turn.plain }),
    draw() {
      thoughts.hidden = !turn.reasoning;
      title.textContent = turn.content || turn.end ? 'Thoughts' : 'Thinking…';
      this.reasoning.draw();
      this.text.draw();
      calls.replaceChildren(...turn.calls.map(showCall));
    },
  };
  parts.draw();
  if (turn.end) finish(turn, parts, i, last);
  return parts;
}

// pretty is JSON on several lines; what is no JSON (yet) stays.
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function showCall(call) {
  const box = element('details', 'call');
  box.open = true;
  box.append(element('summary', '', `Calls ${call.name}`), element('pre', '', pretty(call.arguments)));
  box.lastChild.tabIndex = 0;
  return box;
}

const endings = { length: 'The answer reached its longest length.', stopped: 'You stopped the answer.' };

// finish adds what one can do with a complete answer.
function finish(turn, parts, i, last) {
  if (turn.error) parts.acts.append(element('span', 'note bad', `The answer broke off: ${turn.error}`));
  else if (endings[turn.end]) parts.acts.append(element('span', 'note', endings[turn.end]));
  if (turn.calls.length && last) parts.acts.append(results(turn));
  const again = button(turn.error ? 'Retry' : 'Regenerate', () => regenerate(i));
  parts.acts.append(asks(again), copyButton(() => turn.content));
  if (turn.speed) {
    const line = [verdict(turn.speed).text, details(turn.speed)].filter(Boolean).join(' · ');
    parts.acts.append(element('span', 'note speed', line));
  }
}

// results lets the person do what the model wants called.
function results(turn) {
  const form = element('form', 'results');
  const areas = turn.calls.map((call) => {
    const label = element('label', '', `Result of ${call.name}`);
    const area = element('textarea');
    area.rows = 2;
    label.append(area);
    form.append(label);
    return area;
  });
  form.append(element('button', '', 'Send results'));
  form.addEventListener('submit', (e) => {
    e.preventDefault();
    const said = turn.calls.map((call, i) => ({ role: 'tool', content: areas[i].value, call: call.id }));
    const retry = () => ask([...chat.turns, ...said], { retry });
    retry();
  });
  return form;
}

// edit lets the person change a message. What followed it is replaced when the new answer begins, not before.
function edit(li, turn, i, text = turn.content) {
  if (work) return;
  const form = element('form', 'edit');
  const area = element('textarea');
  area.value = text;
  area.rows = Math.min(12, text.split('\n').length + 1);
  area.setAttribute('aria-label', 'Edit the message');
  const acts = element('div', 'acts');
  const go = element('button', 'primary', 'Send');
  acts.append(go, button('Cancel', () => render()), element('span', 'note', 'A new answer replaces what follows.'));
  form.append(area, acts);
  const resend = () => {
    const now = area.value;
    if (!now.trim()) return;
    ask([...chat.turns.slice(0, i), { ...turn, content: now }], {
      retry: () => $('log').querySelector('form.edit')?.requestSubmit(),
      restore: () => edit($('log').children[i], turn, i, now),
    });
  };
  form.addEventListener('submit', (e) => { e.preventDefault(); resend(); });
  area.addEventListener('keydown', (e) => { if (e.key === 'Escape') { e.stopPropagation(); render(); } });
  li.replaceChildren(li.firstChild, form);
  area.focus();
}

function regenerate(i) {
  if (work) return;
  $('input').focus();
  ask(chat.turns.slice(0, i), { retry: () => regenerate(i) });
}

// --- asking

// messages are turns in the server's words. A call nobody answered gets a result all the same: templates want one.
function messages(turns) {
  const out = [];
  if ($('system').value.trim()) out.push({ role: 'system', content: $('system').value });
  turns.forEach((t, i) => {
    if (t.role === 'tool') {
      out.push({ role: 'tool', content: t.content, tool_call_id: t.call });
      return;
    }
    const m = { role: t.role, content: contentOf(t) };
    if (t.reasoning) m.reasoning_content = t.reasoning;
    out.push(m);
    if (!t.calls?.length) return;
    m.tool_calls = t.calls.map((c) => {
      let args = c.arguments;
      try { JSON.parse(args); } catch { args = '{}'; } // stopped in the middle
      return { id: c.id, type: 'function', function: { name: c.name, arguments: args } };
    });
    if (turns[i + 1]?.role !== 'tool') {
      for (const c of t.calls) out.push({ role: 'tool', content: 'There is no result.', tool_call_id: c.id });
    }
  });
  return out;
}

// request returns where to ask for the next turn, and what.
function request(turns) {
  const req = { model: $('model').value || 'any', strobe: { spans: true } };
  for (const id of numbers) {
    if ($(id).value !== '') req[id] = Number($(id).value);
  }
  if ($('draft').value) req.strobe.draft = $('draft').value;
  if (continues()) {
    req.prompt = turns.map((t) => t.content).join('');
    req.max_tokens ??= 256; // such models seldom end by themselves
    return ['v1/completions', req];
  }
  req.messages = messages(turns);
  if ($('thinking').value) req.chat_template_kwargs = { enable_thinking: $('thinking').value === 'on' };
  if ($('tools').value.trim()) {
    try {
      req.tools = JSON.parse($('tools').value);
    } catch (err) {
      throw new api.Failure(`The tools in the settings are no JSON: ${err.message}`, 400);
    }
  }
  return ['v1/chat/completions', req];
}

// take adds a chunk to a turn. A server without spans, such as one behind this one, sends deltas only.
function take(chunk, turn, parts) {
  const delta = chunk.choices?.[0]?.delta;
  let spans = chunk.strobe?.spans;
  if (!spans) {
    spans = [];
    if (delta?.reasoning_content) spans.push({ kind: 'reasoning', text: delta.reasoning_content });
    const text = delta?.content ?? chunk.choices?.[0]?.text;
    if (text) spans.push({ kind: 'content', text });
  }
  for (const s of spans) {
    (s.kind === 'reasoning' ? parts.reasoning : parts.text).add(s.text, Boolean(s.drafted));
  }
  turn.content = parts.text.text;
  turn.reasoning = parts.reasoning.text;
  for (const c of delta?.tool_calls ?? []) {
    const call = (turn.calls[c.index ?? 0] ??= { id: '', name: '', arguments: '' });
    call.id ||= c.id ?? '';
    call.name ||= c.function?.name ?? '';
    call.arguments += c.function?.arguments ?? '';
  }
  panel.take(chunk.strobe?.drafted ?? []);
  if (chunk.timings) panel.timings(chunk.timings);
  if (chunk.usage) panel.usage(chunk.usage);
  turn.end = chunk.choices?.[0]?.finish_reason ?? turn.end;
}

// ask asks for the turn after these and writes it as it comes. The conversation changes only when something comes:
// before that, a failure leaves it as it was. restore gives back what the person wrote, and retry asks again.
function ask(turns, { retry, restore }) {
  if (work) return;
  const abort = new AbortController();
  work = { abort };
  work.done = write(turns, abort.signal).catch((err) => err).then((err) => {
    work = null;
    busy(false);
    if (!err) return;
    render();
    restore?.();
    if (err.name === 'AbortError') say('You stopped the answer.');
    else if (err.status === 401) askKey(err.message);
    else notice(err.message, retry && 'Retry', retry);
  });
}

async function write(turns, signal) {
  const mine = chat;
  const turn = { role: 'assistant', content: '', reasoning: '', calls: [], plain: continues() };
  notice('');
  busy(true);
  follow.on = true;
  render(turns);
  const i = turns.length;
  const parts = entry(turn, i, true);
  parts.li.setAttribute('aria-busy', 'true'); // read out when it is complete
  follow.now();
  panel.begin($('draft').value === 'off' ? 'Drafting is off' : noDrafter);
  panel.draw();
  say('The answer is being written.');
  const waiting = watch();

  // A drawing that takes long is made less often.
  let timer = 0;
  let pause = 50;
  const draw = () => {
    const began = performance.now();
    timer = 0;
    follow.scrolled(); // the browser's word of it may come only after this drawing
    parts.draw();
    panel.draw();
    follow.now();
    pause = Math.max(50, 4 * (performance.now() - began));
  };
  let kept = false;
  try {
    const [path, req] = request(turns);
    for await (const chunk of api.stream(path, req, $('key').value, signal)) {
      if (chunk.prompt_progress) waiting.prompt(chunk.prompt_progress);
      take(chunk, turn, parts);
      if (!kept && (turn.content || turn.reasoning || turn.calls.length || turn.end)) {
        kept = true;
        waiting.end();
        mine.turns = [...turns, turn];
        mine.title ||= (turns[0].content.trim() || 'Image').replace(/\s+/g, ' ').slice(0, 60);
        save();
      }
      timer ||= setTimeout(draw, pause);
    }
  } catch (err) {
    if (!kept) throw err;
    turn.end = 'stopped';
    if (err.name !== 'AbortError') turn.error = err.message;
  } finally {
    clearTimeout(timer);
    waiting.end();
  }
  turn.end ||= 'stop';
  draw();
  panel.end();
  turn.drafted = parts.text.drafted();
  turn.guessed = parts.reasoning.drafted();
  if (panel.tokens) turn.speed = panel.record();
  parts.li.removeAttribute('aria-busy');
  finish(turn, parts, i, true);
  save();
  follow.now();
  say(turn.error ? `The answer broke off: ${turn.error}` : endings[turn.end] ?? 'The answer is complete.');
  if (chosen()?.state !== 'loaded') listModels();
}

function busy(on) {
  $('send').hidden = on;
  $('stop').hidden = !on;
  document.body.classList.toggle('busy', on);
}

function send() {
  const content = continues() ? $('input').value : $('input').value.trim();
  if (!content.trim() && !pending.list.length || work) return;
  $('input').value = '';
  grow();
  const turn = { role: 'user', content };
  const images = pending.take();
  if (images.length) turn.images = images;
  ask([...chat.turns, turn], {
    retry: send,
    restore: () => {
      pending.put(images);
      $('input').value = content + ($('input').value ? '\n' + $('input').value : '');
      grow();
      $('input').focus();
    },
  });
}

// --- following the answer

// follow keeps the end of the conversation in sight unless the person scrolled up.
const follow = {
  on: true,
  top: 0,
  now() {
    if (this.on) $('scroll').scrollTop = $('welcome').hidden ? $('scroll').scrollHeight : 0;
    $('latest').hidden = this.on;
  },
  scrolled() {
    const s = $('scroll');
    if (s.scrollHeight - s.scrollTop - s.clientHeight < 40) this.on = true;
    else if (s.scrollTop < this.top) this.on = false; // it is people who scroll up
    this.top = s.scrollTop;
    $('latest').hidden = this.on || !$('welcome').hidden;
  },
};

// --- the message box

function grow() {
  const e = $('input');
  e.style.height = 'auto';
  e.style.height = Math.min(e.scrollHeight + 2, innerHeight * 0.35) + 'px';
}

const longestFile = 256 << 10; // more than a context holds

// addImage adds an image to the message, unless the model is known to be blind.
async function addImage(file) {
  if (sees === false || continues()) {
    notice(`This model reads text only: ${file.name || 'the image'} cannot be shown to it.`);
    return;
  }
  const problem = await pending.add(file);
  if (problem) notice(problem);
  else say(`${file.name || 'The image'} is added to the message.`);
  $('input').focus();
}

// addFile puts a text file into the message, fenced so that the model sees where it ends.
async function addFile(file) {
  if (file.type.startsWith('image/') && file.type !== 'image/svg+xml') {
    await addImage(file);
    return;
  }
  if (file.size > longestFile) {
    notice(`${file.name} is too long: ${size(file.size)}, at most ${size(longestFile)}.`);
    return;
  }
  let text;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    text = '\0';
  }
  if (text.includes('\0')) {
    notice(`${file.name} is not a text file.`);
    return;
  }
  let fence = '```';
  while (text.includes(fence)) fence += '`';
  const part = continues() ? text : `${file.name}:\n${fence}\n${text.replace(/\n?$/, '\n')}${fence}\n`;
  $('input').value += ($('input').value && !$('input').value.endsWith('\n') ? '\n' : '') + part;
  grow();
  $('input').focus();
  say(`${file.name} is added to the message.`);
}

async function addFiles(files) {
  for (const f of files) await addFile(f);
}

function examples() {
  const list = continues()
    ? ['func fibonacci(n int) int {', 'type Stack[T any] struct {', 'package main\n\nimport (',
      '// Reverse returns s with its runes in reverse order.\nfunc Reverse(s string) string {']
    : ['Explain speculative decoding with an everyday comparison.', 'Compare TCP and UDP in a table.',
      'Write a Go function that merges two sorted slices, with a test.',
      'Plan three dinners from rice, eggs and spinach.'];
  $('examples').className = continues() ? 'mono' : '';
  $('examples').replaceChildren(...list.map((text) => {
    const li = element('li');
    li.append(button(text, () => {
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

$('form').addEventListener('submit', (e) => { e.preventDefault(); send(); });
$('input').addEventListener('input', grow);
$('input').addEventListener('keydown', (e) => {
  const touch = matchMedia('(pointer: coarse)').matches; // where a line break has no other key
  if (e.key === 'Enter' && !e.shiftKey && !e.isComposing && !touch) { e.preventDefault(); send(); }
});
document.addEventListener('keydown', (e) => {
  if (e.key !== 'Escape' || $('key-dialog').open || $('lightbox').open) return;
  const open = document.querySelector('.side.open');
  if (open) {
    drawer(null);
    $('open-' + open.id).focus();
  } else {
    work?.abort.abort();
  }
});
$('stop').addEventListener('click', () => { work?.abort.abort(); $('input').focus(); });
$('new').addEventListener('click', () => show(store.newChat()).then(() => say('A new conversation begins.')));
$('dismiss').addEventListener('click', () => { notice(''); $('input').focus(); });
$('latest').addEventListener('click', () => { follow.on = true; follow.now(); });
$('scroll').addEventListener('scroll', () => follow.scrolled(), { passive: true });
new ResizeObserver(() => follow.now()).observe($('scroll'));

$('file').addEventListener('change', async () => { await addFiles($('file').files); $('file').value = ''; });
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
  addFiles(e.dataTransfer.files);
});

$('input').addEventListener('paste', (e) => {
  if (!e.clipboardData.files.length) return;
  e.preventDefault();
  addFiles(e.clipboardData.files);
});
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

for (const id of [...fields, 'model']) $(id).addEventListener('change', saveSettings);
for (const id of ['model', 'mode']) $(id).addEventListener('change', learn);
const tint = () => document.body.classList.toggle('tint', $('tint').checked);
$('tint').addEventListener('change', tint);
addEventListener('storage', list); // another tab
addEventListener('pagehide', () => { if (work && chat.turns.length) store.saveChat(chat); });

restoreSettings();
tint();
render();
list();
listModels();
$('input').focus();
