// Tools in the page: MCP servers in the settings, the question before a call, and the results.

import * as mcp from './mcp.js';
import * as store from './store.js';
import { $, button, element } from './dom.js';
import { path } from './thread.js';

const mostRounds = 20; // of calls that were always allowed, one after the other; then the person is asked again

// --- the settings

// servers shows the MCP servers one can choose, and those that are chosen.
export function servers(offered) {
  $('mcp-servers').hidden = !offered.length;
  if (servers.drawn === offered.join()) {
    mark();
    return;
  }
  servers.drawn = offered.join();
  $('mcp-list').replaceChildren(...offered.map((name) => {
    const li = element('li');
    const label = element('label');
    const box = element('input');
    box.type = 'checkbox';
    box.value = name;
    const tools = element('details');
    tools.append(element('summary'));
    tools.hidden = true;
    box.addEventListener('change', () => {
      const chosen = [...$('mcp-list').querySelectorAll('input:checked')].map((b) => b.value);
      $('mcp').value = chosen.join();
      $('mcp').dispatchEvent(new Event('change'));
      mark();
    });
    label.append(box, ' ' + name);
    li.append(label, tools);
    return li;
  }));
  mark();
}

// mark shows which servers the conversation uses, and what they offer.
export function mark() {
  const chosen = mcp.names({ mcp: $('mcp').value });
  for (const li of $('mcp-list').children) {
    const box = li.querySelector('input');
    const tools = li.querySelector('details');
    box.checked = chosen.includes(box.value);
    tools.hidden = !box.checked;
    if (!box.checked) continue;
    mcp.list(box.value, store.key()).then((list) => {
      const ul = element('ul');
      for (const t of list) {
        const item = element('li');
        item.append(element('strong', '', t.name), ' ' + t.description.slice(0, 300));
        ul.append(item);
      }
      tools.replaceChildren(element('summary', '', list.length === 1 ? '1 tool' : `${list.length} tools`), ul);
    }, (err) => tools.replaceChildren(element('summary', 'bad', 'not reached'), element('p', 'note', err.message)));
  }
}

// --- calls

// What became of calls of MCP servers, by turn and place: {stop} while one runs, {text} when it is over. It outlives the
// drawing of the conversation.
const outcomes = new Map();
const place = (turn, i) => `${turn.id} ${i}`;
const outcome = (turn, i) => outcomes.get(place(turn, i));

// stop ends the calls of a turn that run, and reports whether there were some.
export function stop(turn) {
  const all = (turn?.calls ?? []).map((_, i) => outcome(turn, i)?.stop).filter(Boolean);
  for (const end of all) end();
  return all.length > 0;
}

async function run(turn, i, acts) {
  const call = turn.calls[i];
  const abort = new AbortController();
  outcomes.set(place(turn, i), { stop: () => abort.abort() });
  const { id } = acts.chat();
  acts.look();
  let text;
  try {
    text = await mcp.call({ server: call.server, name: call.tool }, call.arguments, store.key(), abort.signal);
  } catch (err) {
    text = err.name === 'AbortError' ? 'The person stopped this call.' : `Error: ${err.message}`;
  }
  over(turn, i, text, acts, id);
}

// over notes what a call gave. When all calls of the turn have a result, the model gets them, unless the conversation is
// another one by now: there a button sends them.
function over(turn, i, text, acts, id = acts.chat().id) {
  outcomes.set(place(turn, i), { text });
  if (acts.chat().id !== id) return;
  const said = turn.calls.map((_, n) => outcome(turn, n)?.text);
  if (path(acts.chat()).at(-1)?.id === turn.id && said.every((s) => s !== undefined)) acts.results(turn, said);
  else acts.look();
}

const wanted = (call) => `${call.server}/${call.tool}`;

// begin runs the calls of a new answer that the person always allows in this conversation, and says what is asked of the
// others; '' for nothing.
export function begin(turn, acts) {
  const chat = acts.chat();
  const turns = path(chat);
  const since = turns.slice(turns.findLastIndex((t) => t.role === 'user'));
  const rounds = since.filter((t) => t.role === 'assistant').length;
  const asked = [];
  turn.calls.forEach((call, i) => {
    if (!call.server) return;
    if (rounds <= mostRounds && chat.allowed?.includes(wanted(call))) run(turn, i, acts);
    else asked.push(call);
  });
  return asked.length ? `May ${asked[0].tool} of ${asked[0].server} run?` : '';
}

function question(turn, i, acts) {
  const call = turn.calls[i];
  const box = element('div', 'question');
  box.setAttribute('role', 'group');
  box.setAttribute('aria-label', `${call.tool} of ${call.server}`);
  const now = outcome(turn, i);
  const row = element('div', 'acts');
  const line = element('p');
  line.append(element('strong', '', call.tool), ' of ', element('strong', '', call.server));
  box.append(line);
  if (now?.stop) {
    line.append(' is running…');
    row.append(button('Stop the call', now.stop));
  } else if (now) {
    box.append(result('Result', now.text));
  } else {
    line.prepend('May ');
    line.append(' run? It gets what is shown above.');
    row.append(button('Allow once', () => run(turn, i, acts), 'primary'),
      button('Always in this conversation', async () => {
        await acts.allow(wanted(call));
        run(turn, i, acts);
      }),
      button('Deny', () => over(turn, i, 'The person does not allow this call.', acts)));
  }
  box.append(row);
  return box;
}

// result is what a tool gave, folded.
export function result(title, text) {
  const box = element('details', 'call');
  const pre = element('pre', '', text);
  pre.tabIndex = 0;
  box.append(element('summary', '', title), pre);
  return box;
}

// results asks the person about calls: of MCP servers whether they may run, of other tools what they gave.
export function results(turn, acts) {
  const form = element('form', 'results');
  const values = turn.calls.map((call, i) => {
    if (call.server) {
      form.append(question(turn, i, acts));
      return () => outcome(turn, i)?.text;
    }
    const label = element('label', '', `Result of ${call.name}`);
    const area = element('textarea');
    area.rows = 2;
    area.value = outcome(turn, i)?.typed ?? '';
    area.addEventListener('input', () => outcomes.set(place(turn, i), { typed: area.value })); // the form is drawn again
    label.append(area);
    form.append(label);
    return () => area.value;
  });
  if (values.every((value) => value() !== undefined)) form.append(element('button', '', 'Send results'));
  form.addEventListener('submit', (e) => {
    e.preventDefault();
    acts.results(turn, values.map((value) => value()));
  });
  return form;
}
