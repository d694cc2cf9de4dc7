// What the page asks the server: turns and settings in the words of its API.

import { Failure } from './api.js';
import { textOf } from './thread.js';

export const numbers = ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed'];

// content is a message's text with its images.
function content(turn) {
  const text = textOf(turn);
  if (!turn.images?.length) return text;
  const images = turn.images.map((image) => ({ type: 'image_url', image_url: { url: image.url } }));
  return [...images, { type: 'text', text }];
}

// messages are turns as the server wants them. A call without an answer gets a result all the same: templates want one.
function messages(turns, system) {
  const out = [];
  if (system?.trim()) out.push({ role: 'system', content: system });
  turns.forEach((t, i) => {
    if (t.role === 'tool') {
      out.push({ role: 'tool', content: t.content, tool_call_id: t.call });
      return;
    }
    const m = { role: t.role, content: content(t) };
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

// ownTools are those that the person wrote into the settings.
export function ownTools(settings) {
  if (!settings.tools?.trim()) return [];
  try {
    return [JSON.parse(settings.tools)].flat();
  } catch (err) {
    throw new Failure(`The tools in the settings are no JSON: ${err.message}`, 400);
  }
}

// request returns where to ask for what follows these turns, and what. plain continues the text. If the last turn is an
// answer, it is continued. tools are what the model may call.
export function request(turns, settings, plain, tools = ownTools(settings)) {
  const req = { model: settings.model || 'any', strobe: { spans: true } };
  for (const id of numbers) if (settings[id]) req[id] = Number(settings[id]);
  if (settings.draft) req.strobe.draft = settings.draft;
  if (plain) {
    req.prompt = turns.map(textOf).join('');
    req.max_tokens ??= 256; // such models seldom end by themselves
    return ['v1/completions', req];
  }
  req.messages = messages(turns, settings.system);
  if (settings.thinking) req.chat_template_kwargs = { enable_thinking: settings.thinking === 'on' };
  if (tools.length) req.tools = tools;
  return ['v1/chat/completions', req];
}
