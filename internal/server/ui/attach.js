// What goes with the next message: text files as chips, and images.

import { $, button, bytes, element } from './dom.js';
import { Waiting } from './images.js';

const longestFile = 1 << 20; // bytes; more than most contexts hold
const longestPDF = 20 << 20; // most of it is fonts and pictures
const pdfTime = 20000; // ms to read one
const mostFiles = 50; // of a message
const longPaste = 4000; // characters; a longer text that is pasted becomes a file

// decode is the text of a file, null if it has none. What is not UTF-8 is read as Windows-1252, which has Latin-1 in
// it; a file with control characters is not text.
export function decode(data) {
  const b = new Uint8Array(data);
  let name = 'utf-8';
  if (b[0] === 0xff && b[1] === 0xfe) name = 'utf-16le';
  if (b[0] === 0xfe && b[1] === 0xff) name = 'utf-16be';
  let text;
  try {
    text = new TextDecoder(name, { fatal: true }).decode(b);
  } catch {
    text = new TextDecoder('windows-1252').decode(b);
  }
  return /[\0-\x08\x0e-\x1a\x1c-\x1f\x7f]/.test(text) ? null : text;
}

// pdfText reads a PDF file in a worker of its own, which ends with it: {text} or {problem}.
function pdfText(data) {
  return new Promise((done) => {
    const worker = new Worker(new URL('./pdf.js', import.meta.url), { type: 'module' });
    const end = (what) => {
      clearTimeout(timer);
      worker.terminate();
      done(what);
    };
    const timer = setTimeout(() => end({ problem: 'it takes too long to read' }), pdfTime);
    worker.onmessage = (e) => end(e.data);
    worker.onerror = () => end({ problem: 'it takes too much memory' });
    worker.postMessage(data, [data]);
  });
}

const isPDF = (data) => new TextDecoder('latin1').decode(data.slice(0, 5)) === '%PDF-';

// entries lists the files of what was dropped, those in folders too.
async function entries(items) {
  const out = [];
  const walk = async (entry, path) => {
    if (out.length > mostFiles) return;
    if (entry.isFile) {
      const file = await new Promise((ok, fail) => { entry.file(ok, fail); });
      out.push({ file, name: path + file.name });
      return;
    }
    if (entry.name.startsWith('.') || entry.name === 'node_modules') return;
    const reader = entry.createReader();
    for (;;) { // a folder comes in parts
      const part = await new Promise((ok, fail) => { reader.readEntries(ok, fail); });
      if (!part.length) return;
      for (const e of part) await walk(e, `${path}${entry.name}/`);
    }
  };
  for (const e of items) await walk(e, '');
  return out;
}

export class Attachments {
  // env: {notice(text), say(text), sees() (null when unknown), plain(), count(text) (a promise), changed()}
  constructor(env) {
    this.env = env;
    this.files = []; // {name, text, tokens}
    this.images = new Waiting($('images'));
  }

  empty() { return !this.files.length && !this.images.list.length; }

  // take returns what there is and forgets it.
  take() {
    const { files } = this;
    this.files = [];
    this.draw();
    return { files: files.map(({ name, text }) => ({ name, text })), images: this.images.take() };
  }

  put({ files = [], images = [] }) {
    this.files = [];
    for (const f of files) this.push(f.name, f.text);
    this.images.put(images);
    this.draw();
  }

  push(name, text) {
    const file = { name, text, tokens: null };
    this.files.push(file);
    this.env.count(text).then((n) => {
      file.tokens = n;
      this.draw();
    }, () => {});
    this.draw();
  }

  // addAll adds files, those of a folder with their paths in it. Hidden ones and those of node_modules are left out.
  async addAll(files) {
    const named = files.map((f) => ({ file: f, name: f.webkitRelativePath || f.name }))
      .filter(({ file, name }) => !file.webkitRelativePath || !/(^|\/)(\.|node_modules\/)/.test(name));
    if (named.length > mostFiles) this.env.notice(`A message has at most ${mostFiles} files, these are ${named.length}.`);
    for (const { file, name } of named.slice(0, mostFiles)) await this.add(file, name);
    $('input').focus();
  }

  // drop adds what was dropped: files, images and folders.
  async drop(transfer) {
    const items = [...transfer.items].map((i) => i.webkitGetAsEntry?.()).filter(Boolean);
    if (!items.some((i) => i.isDirectory)) {
      await this.addAll([...transfer.files]);
      return;
    }
    for (const { file, name } of await entries(items)) await this.add(file, name);
    $('input').focus();
  }

  async add(file, name) {
    const { env } = this;
    if (file.type.startsWith('image/') && file.type !== 'image/svg+xml') {
      if (env.sees() === false || env.plain()) {
        env.notice(`This model reads text only: ${name || 'the image'} cannot be shown to it.`);
        return;
      }
      const problem = await this.images.add(file);
      if (problem) env.notice(problem); else env.say(`${name || 'The image'} is added to the message.`);
      return;
    }
    if (this.files.length >= mostFiles) {
      env.notice(`A message has at most ${mostFiles} files.`);
      return;
    }
    const pdf = isPDF(await file.slice(0, 5).arrayBuffer());
    const most = pdf ? longestPDF : longestFile;
    if (file.size > most) {
      env.notice(`${name} is too long: ${bytes(file.size)}, at most ${bytes(most)}.`);
      return;
    }
    if (pdf) {
      env.say(`${name} is being read.`);
      const { text, problem } = await pdfText(await file.arrayBuffer());
      if (problem) {
        env.notice(`${name} cannot be read: ${problem}.`);
      } else {
        this.push(name, text);
        env.say(`The text of ${name} is added to the message.`);
      }
      return;
    }
    const text = decode(await file.arrayBuffer());
    if (text === null) {
      env.notice(`${name} is not a text file.`);
      return;
    }
    this.push(name, text);
    env.say(`${name} is added to the message.`);
  }

  // paste takes files and long texts, and reports whether it did.
  paste(data) {
    if (data.files.length) {
      this.addAll([...data.files]);
      return true;
    }
    const text = data.getData('text/plain');
    if (text.length <= longPaste) return false;
    const n = this.files.filter((f) => f.name.startsWith('Pasted text')).length;
    this.push(n ? `Pasted text ${n + 1}` : 'Pasted text', text);
    this.env.say('The long text is added as a file.');
    return true;
  }

  tokens() { return this.files.reduce((sum, f) => sum + (f.tokens ?? 0), 0); }

  draw() {
    $('files').hidden = !this.files.length;
    $('files').replaceChildren(...this.files.map((file) => {
      const li = element('li', 'chip');
      const size = file.tokens === null ? bytes(file.text.length) : `${file.tokens} tokens`;
      const remove = button('×', () => {
        this.files = this.files.filter((f) => f !== file);
        this.draw();
        $('input').focus();
      });
      remove.setAttribute('aria-label', `Remove ${file.name}`);
      li.append(element('span', 'name', file.name), element('span', 'note', size), remove);
      return li;
    }));
    this.env.changed();
  }
}
